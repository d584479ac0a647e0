//! Rules that guess what a header does not say, each from several signs that must not contradict each other.

use crate::model::{Struct, Type, TypeKind};
use crate::tools::init::counts::{BYTES, COUNTS, ElementCount};
use crate::tools::init::evidence::Flow;
use crate::tools::init::subject::{Subject, bytes_of};
use crate::tools::init::words::{has_word, looks_plural, stem, words};

/// Descriptors for one value, with the rule that found them and the signs that it saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Likely {
    pub descriptors: String,
    pub rule: &'static str,
    pub why: String,
}

const MAKES: [&str; 12] =
    ["create", "new", "open", "alloc", "allocate", "make", "clone", "load", "instantiate", "import", "build", "record"];
const ASKS: [&str; 12] =
    ["get", "query", "read", "info", "find", "elapsed", "enumerate", "retrieve", "fetch", "count", "next", "lookup"];
/// A call that changes something: a plain pointer of it may well flow in.
const SETS: [&str; 9] = ["set", "write", "update", "put", "upload", "submit", "add", "append", "free"];

/// Names of pointers that stand for a place, not for the content of one.
const PLACES: [&str; 6] = ["ptr", "pointer", "address", "addr", "devptr", "dptr"];
const CONTEXTS: [&str; 8] = ["user", "userdata", "context", "ctx", "data", "arg", "opaque", "cookie"];

fn guess(rule: &'static str, descriptors: impl Into<String>, why: impl Into<String>) -> Option<Likely> {
    Some(Likely { descriptors: descriptors.into(), rule, why: why.into() })
}

impl Subject<'_> {
    /// The guess for a parameter; None: the signs do not suffice.
    pub fn parameter(&self, n: usize) -> Option<Likely> {
        let ty = self.types[n];
        match &ty.kind {
            TypeKind::FunctionPointer(_) => self.callback(n),
            TypeKind::Pointer { to, constant } => {
                if is_device_address(&ty.spelling) && !ty.spelling.ends_with('*') {
                    return guess("device-address", "device_address;", "the name of its type says so");
                }
                if self.is_place(n) {
                    return guess("device-address", "device_address;", "memory of devices is a pointer in this API");
                }
                let constant = *constant || to.spelling.starts_with("const ") && !to.spelling.contains('*');
                match constant {
                    true => self.input(n, to),
                    false => self.pointer(n, to),
                }
            }
            TypeKind::Struct(s) if (self.translated)(ty) => {
                let fields = self.fields(s)?;
                guess("counted-members", fields, "its pointers have counts or are texts")
            }
            _ => None,
        }
    }

    /// Descriptors for the pointers in a struct that flows to the library, if each has a count in it or is a text.
    fn fields(&self, s: &Struct) -> Option<String> {
        if s.union {
            return None;
        }
        let names: Vec<String> = s.fields.iter().map(|f| f.name.clone()).collect();
        let inner = Subject {
            function: "",
            names: &names,
            types: s.fields.iter().map(|f| &f.ty).collect(),
            evidence: &[],
            ..*self
        };
        let mut text = String::new();
        for (n, field) in s.fields.iter().enumerate() {
            if (self.handle)(&field.ty) || !(self.translated)(&field.ty) {
                continue;
            }
            let TypeKind::Pointer { to, .. } = &field.ty.kind else { return None };
            if is_text(&field.ty) {
                text += &format!("field({}) {{ in; string; }} ", field.name);
                continue;
            }
            let flat = !(self.translated)(to) && !matches!(to.kind, TypeKind::Void | TypeKind::Incomplete);
            let count = inner.members_count(n).filter(|_| flat)?;
            text += &format!("field({}) {{ in; buffer({count}); }} ", field.name);
        }
        Some(text)
    }

    /// The guess for what the function returns.
    pub fn result(&self) -> Option<Likely> {
        let makes = self.verb(&MAKES);
        (makes && (self.handle)(self.result)).then(|| Likely {
            descriptors: "allocate;".into(),
            rule: "made-result",
            why: format!("{} makes what it returns", self.function),
        })
    }

    fn verb(&self, among: &[&str]) -> bool {
        has_word(self.function, among)
    }

    fn flow(&self, n: usize) -> Option<Flow> {
        self.evidence.get(n).and_then(|e| e.flow)
    }

    fn callback(&self, n: usize) -> Option<Likely> {
        let TypeKind::FunctionPointer(signature) = &self.types[n].kind else { return None };
        let contexts: Vec<&String> =
            signature.parameters.iter().filter(|(_, ty)| is_plain_void(ty)).map(|(name, _)| name).collect();
        let here: Vec<usize> = (0..self.types.len()).filter(|&m| is_plain_void(self.types[m])).collect();
        // One context on both sides, or none.
        let ([inner], [_]) = (contexts.as_slice(), here.as_slice()) else { return None };
        if signature.parameters.iter().any(|(_, ty)| matches!(ty.kind, TypeKind::FunctionPointer(_))) {
            return None;
        }
        let mut named: Vec<String> = Vec::new();
        let mut body = String::new();
        for (m, (name, ty)) in signature.parameters.iter().enumerate() {
            let name = if named.contains(name) { format!("{name}_{m}") } else { name.clone() };
            if name == **inner {
                body += &format!("argument({name}) {{ userdata; }} ");
            } else if is_text(ty) {
                body += &format!("argument({name}) {{ in; string; }} ");
            } else if matches!(ty.kind, TypeKind::Pointer { .. }) && !(self.handle)(ty) {
                // Its size is somewhere, or it is one.
                return None;
            }
            named.push(name);
        }
        guess(
            "callback",
            format!("callback({}) {{ {}}}", named.join(", "), body),
            format!("a function pointer beside a context (`{inner}`)"),
        )
    }

    /// `const T *`
    fn input(&self, n: usize, to: &Type) -> Option<Likely> {
        if matches!(self.flow(n), Some(Flow::Out | Flow::Both)) {
            return None;
        }
        if is_character(to) {
            // Text with a length of its own needs no NUL.
            let count = self.count(n, true).filter(|c| self.is_length_of(c, n))?;
            return guess("text-length", format!("in; buffer({});", count.expression), count.why);
        }
        let is_void = matches!(to.kind, TypeKind::Void);
        if PLACES.contains(&stem(&self.names[n]).as_str()) {
            return None;
        }
        let inner;
        let element = match &to.kind {
            TypeKind::Pointer { to: inner, .. } if is_character(inner) && !(self.handle)(to) => {
                " element { in; string; }"
            }
            TypeKind::Struct(s) if (self.translated)(to) => {
                inner = format!(" element {{ {}}}", self.fields(s)?);
                &inner
            }
            _ if (self.translated)(to) => return None,
            _ => "",
        };
        let is_struct = matches!(to.kind, TypeKind::Struct(_));
        let several = |c: &ElementCount| !is_struct || looks_plural(&self.names[n]) || self.is_length_of(c, n);
        if let Some(count) = self.count(n, is_void || bytes_of(to) == Some(1)).filter(several) {
            return guess("input-count", format!("in; buffer({});{element}", count.expression), count.why);
        }
        if is_void || looks_plural(&self.names[n]) && self.is_bounded(n) {
            return None;
        }
        match &to.kind {
            TypeKind::Struct(_) => {
                guess("input-struct", format!("in;{element}"), "a constant struct, with no count beside it")
            }
            _ => None,
        }
    }

    /// `T *`
    fn pointer(&self, n: usize, to: &Type) -> Option<Likely> {
        let name = &self.names[n];
        let told = self.flow(n);
        let is_void = matches!(to.kind, TypeKind::Void);
        if told == Some(Flow::In) && !is_void {
            return None;
        }
        match &to.kind {
            TypeKind::Void => self.untyped(n),
            _ if is_text(to) => self.texts(n),
            _ if is_device_address(&to.spelling) && !matches!(to.kind, TypeKind::Int { .. }) => self.placed(n),
            TypeKind::Pointer { to: inner, .. } if matches!(inner.kind, TypeKind::Void) && !(self.handle)(to) => {
                self.placed(n)
            }
            _ if is_character(to) => {
                let count = self.count(n, true)?;
                let out = told == Some(Flow::Out) || self.verb(&ASKS) || self.size_query(n).is_some();
                out.then(|| self.filled("text-room", n, &count)).flatten()
            }
            _ if (self.handle)(to) => self.handles(n),
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) | TypeKind::Incomplete => None,
            _ if (self.translated)(to) => None,
            TypeKind::Int { .. } | TypeKind::Float { .. } => self.numbers(n, to),
            TypeKind::Struct(s) => {
                if let Some(count) = self.count(n, false) {
                    return (told == Some(Flow::Out) || self.verb(&ASKS) || self.is_room(n, &count))
                        .then(|| self.filled("struct-room", n, &count))
                        .flatten();
                }
                let outward = told == Some(Flow::Out) || self.verb(&ASKS);
                let last = !self.types[n + 1..]
                    .iter()
                    .any(|t| matches!(t.kind, TypeKind::Pointer { .. }) && !(self.handle)(t));
                if !outward || self.verb(&SETS) || told.is_none() && (looks_plural(name) && self.is_bounded(n) || !last)
                {
                    return None;
                }
                let first = s.fields.first().map(|f| stem(&f.name));
                match first.as_deref() {
                    Some("version" | "structsize" | "cbsize") => guess(
                        "versioned-struct",
                        "in; out;",
                        "a struct whose first member says which one it is, in a call that asks",
                    ),
                    _ => guess("struct-out", "out;", "a struct in a call that asks"),
                }
            }
            _ => None,
        }
    }

    /// True if the untyped pointer is one into memory of a device, by its name and by the API's way to allocate it.
    fn is_place(&self, n: usize) -> bool {
        let TypeKind::Pointer { to, .. } = &self.types[n].kind else { return false };
        let name = stem(&self.names[n]);
        self.device_memory
            && matches!(to.kind, TypeKind::Void)
            && (PLACES.contains(&name.as_str()) || has_word(self.function, &["memset"]) && name == "dst")
            && !self.function.to_ascii_lowercase().contains("host")
    }

    /// `const char **`
    fn texts(&self, n: usize) -> Option<Likely> {
        let name = &self.names[n];
        if let Some(count) = self.count(n, true) {
            let inward = !self.verb(&ASKS) && self.flow(n) != Some(Flow::Out) && !count.expression.starts_with('*');
            return inward
                .then(|| {
                    guess(
                        "text-list",
                        format!("in; buffer({}); element {{ in; string; }}", count.expression),
                        count.why,
                    )
                })
                .flatten();
        }
        let asks = self.verb(&ASKS) && !looks_plural(name) || self.flow(n) == Some(Flow::Out);
        asks.then(|| guess("text-out", "out; element { string; }", "a text in a call that asks")).flatten()
    }

    /// `void **`, in a call that allocates memory of a device.
    pub fn placed(&self, n: usize) -> Option<Likely> {
        let allocates = self.function.to_ascii_lowercase().contains("alloc") && !self.verb(&ASKS);
        let sized = self.types.iter().zip(self.names).any(|(t, name)| {
            matches!(t.kind, TypeKind::Int { .. }) && (has_word(name, &BYTES) || has_word(name, &["width", "pitch"]))
        });
        let told = is_device_address(&self.types[n].spelling);
        let host =
            self.function.to_ascii_lowercase().contains("host") || has_word(self.function, &["managed", "shared"]);
        (allocates && sized && (told || !host))
            .then(|| {
                guess(
                    "device-memory",
                    "out; element { device_address; }",
                    "the place of memory that the call allocates",
                )
            })
            .flatten()
    }

    /// `void *`
    fn untyped(&self, n: usize) -> Option<Likely> {
        if self.flow(n) == Some(Flow::In) && !self.types.iter().any(|t| matches!(t.kind, TypeKind::FunctionPointer(_)))
        {
            return None;
        }
        let callbacks = self.types.iter().filter(|t| matches!(t.kind, TypeKind::FunctionPointer(_))).count();
        let voids = self.types.iter().filter(|t| is_plain_void(t)).count();
        if callbacks == 1 && voids == 1 && has_word(&self.names[n], &CONTEXTS) {
            return guess("userdata", "userdata;", "the only untyped pointer beside a callback");
        }
        if callbacks > 0 {
            return None;
        }
        let count = self.count(n, true)?;
        let out = self.flow(n) == Some(Flow::Out) || self.size_query(n).is_some();
        let reads = self.verb(&["read", "get", "query", "info"]) && !self.verb(&SETS);
        (out || reads).then(|| self.filled("untyped-room", n, &count)).flatten()
    }

    /// Room for `count` elements, all of which the call fills or as many as it says.
    fn filled(&self, rule: &'static str, n: usize, count: &ElementCount) -> Option<Likely> {
        let returned = match self.size_query(n) {
            Some(told) => format!(" returned(*{});", self.names[told]),
            None => String::new(),
        };
        guess(rule, format!("out; buffer({});{returned}", count.expression), count.why.clone())
    }

    /// The parameter behind a pointer and its size through which the call says how much there is: `size_t *size_ret`.
    fn size_query(&self, n: usize) -> Option<usize> {
        let count = self.count(n, true)?;
        if count.expression.starts_with('*') {
            return None;
        }
        let next = n.max(count.parameter) + 1;
        let ty = self.types.get(next)?;
        let TypeKind::Pointer { to, constant: false } = &ty.kind else { return None };
        let is_size = matches!(to.kind, TypeKind::Int { .. }) && bytes_of(to) == bytes_of(self.types[count.parameter]);
        let name = &self.names[next];
        let says = has_word(name, &["ret", "returned", "needed", "required", "actual", "written"]);
        (is_size && says && has_word(name, &[&BYTES[..], &COUNTS[..]].concat())).then_some(next)
    }

    /// A pointer to a handle.
    fn handles(&self, n: usize) -> Option<Likely> {
        let count = self.count(n, false);
        let told = self.flow(n) == Some(Flow::Out);
        let makes = self.verb(&MAKES) && !self.verb(&["get", "set", "find"]);
        let later =
            self.types[n + 1..].iter().any(|t| matches!(&t.kind, TypeKind::Pointer { to, .. } if (self.handle)(to)));
        match count {
            Some(count) if told || self.verb(&ASKS) || self.is_room(n, &count) => {
                guess("handle-list", format!("out; buffer({});", count.expression), count.why)
            }
            Some(_) => None,
            None if makes && !looks_plural(&self.names[n]) => {
                guess("made-handle", "out; element { allocate; }", format!("{} makes an object", self.function))
            }
            None if self.verb(&ASKS) && !self.verb(&SETS) && !looks_plural(&self.names[n]) => {
                guess("found-handle", "out;", format!("{} asks for an object", self.function))
            }
            None if !later && is_event(&self.names[n]) => {
                guess("event", "out; element { allocate; }", "an event at the end of the parameters")
            }
            None if told => guess("documented-handle", "out;", "the documentation says that it is returned"),
            None if self.is_last(n) && self.ends(n) && !looks_plural(&self.names[n]) && !self.verb(&SETS) => {
                let why = "the last parameter, of a type that applications end the objects of";
                guess("returned-handle", "out; element { allocate; }", why)
            }
            None => None,
        }
    }

    fn is_last(&self, n: usize) -> bool {
        n + 1 == self.types.len() && matches!(self.result.kind, TypeKind::Int { .. } | TypeKind::Pointer { .. })
    }

    /// True if a function ends objects of the type that the parameter points to.
    fn ends(&self, n: usize) -> bool {
        matches!(&self.types[n].kind, TypeKind::Pointer { to, .. } if (self.ended)(to))
    }

    /// A pointer to numbers.
    fn numbers(&self, n: usize, to: &Type) -> Option<Likely> {
        let name = &self.names[n];
        let told = self.flow(n);
        if told == Some(Flow::Both) {
            return guess("documented-both", "in; out;", "the documentation says that it flows both ways");
        }
        if let Some(count) = self.count(n, bytes_of(to) == Some(1)) {
            return (told == Some(Flow::Out) || self.verb(&ASKS) || self.is_room(n, &count))
                .then(|| self.filled("number-room", n, &count))
                .flatten();
        }
        // A list that this number bounds: the caller says how much room there is, and is told how much was used.
        if has_word(name, &COUNTS) || has_word(name, &BYTES) {
            let lists = (0..self.types.len()).any(|m| {
                m != n && self.list_of(m).is_some_and(|_| self.count(m, true).is_some_and(|c| c.parameter == n))
            });
            if lists {
                return (self.verb(&ASKS) || told.is_some())
                    .then(|| {
                        guess(
                            "room-and-use",
                            "in; out;",
                            "it bounds the list beside it and says how much of it was used",
                        )
                    })
                    .flatten();
            }
        }
        let plural = looks_plural(name) && self.is_bounded(n) && !has_word(name, &COUNTS);
        if plural || self.verb(&SETS) && told.is_none() && !self.verb(&["get"]) {
            return None;
        }
        if told == Some(Flow::Out) {
            return guess("documented-number", "out;", "the documentation says that it is returned");
        }
        let marked = has_word(name, &["ret", "out", "returned"]) || has_word(name, &COUNTS) || has_word(name, &BYTES);
        let pointed = name.starts_with('p') && name[1..].starts_with(|c: char| c.is_ascii_uppercase());
        (self.verb(&ASKS)
            || self.verb(&["is", "has", "can", "supported", "occupancy", "suggested"])
            || marked && !self.verb(&MAKES)
            || pointed)
            .then(|| guess("number-out", "out;", "a pointer to one number, in a call that answers"))
            .flatten()
    }

    fn list_of(&self, n: usize) -> Option<&Type> {
        match &self.types[n].kind {
            TypeKind::Pointer { to, constant: false } if !(self.handle)(self.types[n]) && !self.counts_itself(n) => {
                Some(to)
            }
            _ => None,
        }
    }
}

fn is_plain_void(ty: &Type) -> bool {
    matches!(&ty.kind, TypeKind::Pointer { to, constant: false } if matches!(to.kind, TypeKind::Void) && !to.spelling.starts_with("const "))
}

fn is_text(ty: &Type) -> bool {
    matches!(&ty.kind, TypeKind::Pointer { to, .. } if to.spelling == "const char")
}

fn is_character(ty: &Type) -> bool {
    matches!(ty.spelling.as_str(), "char" | "const char")
}

/// A number, or a pointer, that is a place in a device's memory by the name of its type.
fn is_device_address(spelling: &str) -> bool {
    let plain = spelling.to_ascii_lowercase();
    plain.contains("deviceptr") || plain.contains("devptr_t")
}

fn is_event(name: &str) -> bool {
    words(name).last().is_some_and(|word| word == "event")
}
