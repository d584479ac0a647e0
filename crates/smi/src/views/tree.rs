//! A tree of labelled values, written as indented text or as XML.

/// Column of the colon in text.
const VALUE_COLUMN: usize = 55;
/// The same in lists of processes.
const NARROW_COLUMN: usize = 42;

/// One line or element, and what is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// In text; empty: not there.
    label: &'static str,
    /// In XML; empty: not there.
    tag: &'static str,
    content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Value(String),
    /// The same with its colon further left.
    Narrow(String),
    Group(Vec<Node>),
    /// A group without members: text says `None`, XML has an element without content, or with this.
    Nothing(&'static str),
}

pub fn value(label: &'static str, tag: &'static str, text: impl Into<String>) -> Node {
    Node { label, tag, content: Content::Value(text.into()) }
}

/// A line of a list of processes; text only.
pub fn narrow(label: &'static str, text: impl Into<String>) -> Node {
    Node { label, tag: "", content: Content::Narrow(text.into()) }
}

pub fn group(label: &'static str, tag: &'static str, members: Vec<Node>) -> Node {
    Node { label, tag, content: Content::Group(members) }
}

pub fn nothing(label: &'static str, tag: &'static str, xml: &'static str) -> Node {
    Node { label, tag, content: Content::Nothing(xml) }
}

impl Node {
    /// Without its text.
    pub fn only_xml(self) -> Node {
        Node { label: "", ..self }
    }

    /// The text of the member with this XML name, however deep.
    pub fn find(&self, tag: &str) -> Option<&str> {
        match &self.content {
            Content::Value(text) if self.tag == tag => Some(text),
            Content::Group(members) => members.iter().find_map(|member| member.find(tag)),
            _ => None,
        }
    }

    pub fn write_text(&self, depth: usize, to: &mut String) {
        if self.label.is_empty() {
            return;
        }
        let indent = 4 * depth;
        let width = VALUE_COLUMN.saturating_sub(indent);
        match &self.content {
            Content::Value(text) => line(to, indent, width, self.label, text),
            Content::Narrow(text) => line(to, indent, NARROW_COLUMN.saturating_sub(indent), self.label, text),
            Content::Nothing(_) => line(to, indent, width, self.label, "None"),
            Content::Group(members) => {
                to.push_str(&format!("{:indent$}{}\n", "", self.label));
                members.iter().for_each(|member| member.write_text(depth + 1, to));
            }
        }
    }

    pub fn write_xml(&self, depth: usize, to: &mut String) {
        if self.tag.is_empty() {
            return;
        }
        let indent = "\t".repeat(depth);
        let tag = self.tag;
        match &self.content {
            Content::Value(text) | Content::Narrow(text) => {
                to.push_str(&format!("{indent}<{tag}>{}</{tag}>\n", escaped(text)))
            }
            Content::Nothing("") => to.push_str(&format!("{indent}<{tag}>\n{indent}</{tag}>\n")),
            Content::Nothing(text) => to.push_str(&format!("{indent}<{tag}>\n{indent}\t{text}\n{indent}</{tag}>\n")),
            Content::Group(members) => {
                to.push_str(&format!("{indent}<{tag}>\n"));
                members.iter().for_each(|member| member.write_xml(depth + 1, to));
                to.push_str(&format!("{indent}</{tag}>\n"));
            }
        }
    }
}

fn line(to: &mut String, indent: usize, width: usize, label: &str, text: &str) {
    to.push_str(&format!("{:indent$}{label:<width$}: {text}\n", ""));
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_written_as_text_and_as_xml() {
        let tree = group(
            "Top",
            "top",
            vec![value("One", "one", "1 <2>"), value("", "only_xml", "x"), nothing("Empty", "empty", "None")],
        );
        let (mut text, mut xml) = (String::new(), String::new());
        tree.write_text(1, &mut text);
        tree.write_xml(1, &mut xml);
        assert_eq!(
            text,
            "    Top\n        One                                            : 1 <2>\n        Empty                                          : None\n"
        );
        assert_eq!(
            xml,
            "\t<top>\n\t\t<one>1 &lt;2&gt;</one>\n\t\t<only_xml>x</only_xml>\n\t\t<empty>\n\t\t\tNone\n\t\t</empty>\n\t</top>\n"
        );
    }
}
