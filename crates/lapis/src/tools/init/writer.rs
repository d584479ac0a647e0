//! The text of a provisional specification.

use crate::header::declarator::declare;
use crate::load::quoted;
use crate::model::{Signature, Type, TypeKind};
use crate::names::{api_name_for, not_a_soname};
use crate::resolve::{bare, canonical_name};
use crate::syntax::parser::items::is_item;
use crate::tools::init::endings::{Ending, ending};
use crate::tools::init::evidence::evidence;
use crate::tools::init::facts::{ErrorReporting, error_argument, error_type, handles, is_untyped, status_argument};
use crate::tools::init::gathered::{ApiFunction, GatheredApi, InitOptions, Level};
use crate::tools::init::rules::Likely;
use crate::tools::init::subject::Subject;
use std::path::Path;

/// The header as the specification names it: a relative path stays one, so that both can move together.
fn beside(header: &Path) -> String {
    if header.is_relative() && header.is_file() { format!("\"{}\"", header.display()) } else { quoted(header) }
}

pub(super) struct Writer<'a> {
    api: &'a GatheredApi<'a>,
    options: &'a InitOptions,
    /// The type with which functions report errors, and its success code.
    error: Option<ErrorReporting>,
    error_argument: Option<String>,
    /// Handle types: how each is compared, and how the header writes it first.
    handles: Vec<(String, String)>,
    /// Functions hand out memory of devices as `void *`.
    device_memory: bool,
    out: String,
}

/// The descriptors of a value, as far as they are known.
enum Said {
    /// Descriptors that are right, or harm nothing.
    Certain(String),
    /// Something has to be said, of which the first part is certain.
    Asked(String, String),
}

impl<'a> Writer<'a> {
    pub(super) fn new(api: &'a GatheredApi<'a>, options: &'a InitOptions) -> Self {
        let error = error_type(api);
        let error_argument = error.as_ref().filter(|e| !e.is_object).and_then(|e| error_argument(api, &e.ty));
        let handles = handles(api.header, &api.functions);
        let mut writer =
            Writer { api, options, error, error_argument, handles, device_memory: false, out: String::new() };
        writer.device_memory = api.functions.iter().any(|f| writer.allocates(f));
        writer
    }

    /// True if the function allocates memory of a device and says where it is through a `void **`.
    fn allocates(&self, function: &ApiFunction) -> bool {
        let parameters = &function.signature.parameters;
        let names = names(parameters);
        self.with_subject(function, &names, |subject| {
            (0..parameters.len()).any(|n| {
                let inner = parameters[n].1.pointee().is_some_and(|t| matches!(&t.kind, TypeKind::Pointer { to, constant: false } if matches!(to.kind, TypeKind::Void)));
                inner && !self.is_handle(&parameters[n].1) && subject.placed(n).is_some()
            })
        })
    }

    fn with_subject<T>(&self, function: &ApiFunction, names: &[String], ask: impl FnOnce(&Subject) -> T) -> T {
        let Signature { parameters, result, .. } = function.signature;
        let own: Vec<String> = parameters.iter().map(|(name, _)| name.clone()).collect();
        let evidence = evidence(function.notes, &own);
        ask(&Subject {
            function: function.name,
            names,
            types: parameters.iter().map(|(_, ty)| ty).collect(),
            result,
            evidence: &evidence,
            device_memory: self.device_memory,
            handle: &|ty| self.is_handle(ty),
            ended: &|ty| self.is_ended(ty),
            translated: &|ty| self.translated(ty, 0),
        })
    }

    pub(super) fn write(mut self, path: &Path) -> String {
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        self.line("// A provisional specification, written by `aviary spec init`.");
        self.line("// Every `placeholder` stands for something that a header cannot say: replace it.");
        if self.options.level == Level::Guesses {
            self.line(
                "// Every `guess` is likely and no more: check it, and leave its descriptors without the `guess`.",
            );
        }
        for define in &self.options.headers.defines {
            let (name, value) = define.split_once('=').unwrap_or((define, "1"));
            self.line(&format!("#define {name} {value}"));
        }
        self.line(&format!("#include {}", beside(path)));
        self.line("");
        self.line("// Name, version and vendor library: check them.");
        let name = api_name_for(&stem);
        let known = self.options.library.as_ref().and_then(|l| l.soname.clone()).filter(|s| not_a_soname(s).is_none());
        let soname = known.unwrap_or_else(|| format!("lib{name}.so"));
        self.line(&format!("api(\"{name}\", \"0\", \"{soname}\");"));
        self.line("");
        self.error_codes();
        let error = self.error.as_ref().filter(|e| e.is_object).map(|e| e.ty.clone());
        for (_, handle) in self.handles.clone() {
            if error.as_ref() != Some(&handle) {
                self.line(&format!("type({handle}) {{ handle; }}"));
            }
        }
        for table in &self.api.tables {
            self.line(&format!("table({}) {};", table.ty, table.name));
        }
        if let (Some(library), false) = (&self.options.library, self.api.missing.is_empty()) {
            self.line("");
            self.line(&format!("// {} does not export: {}.", library.file, self.api.missing.join(", ")));
        }
        self.line("");
        for function in &self.api.functions {
            self.function(function);
        }
        self.out
    }

    fn error_codes(&mut self) {
        match &self.error {
            Some(ErrorReporting { ty, is_object: true, .. }) => {
                let what = "how does the guest make such an object? `status; success(NULL); failure(e); lost(e);`";
                let text = format!("type({ty}) {{ handle; {} }}", placeholder(what));
                self.line("// The object that reports the result of a call; NULL is success.");
                self.line(&text);
            }
            Some(ErrorReporting { ty, success, .. }) => {
                let text = format!("type({ty}) {{ success({success}); }}");
                self.line("// Codes for calls that are refused, not virtualized, or whose server is gone:");
                self.line("// add failure(v), unsupported(v), lost(v).");
                self.line(&text);
            }
            None => {
                if let Some((name, ty)) = status_argument(self.api, &|ty| self.is_handle(ty)) {
                    self.line(&format!("// Functions report errors through their argument `{name}`, a `{ty}`."));
                }
            }
        }
        if let Some(name) = self.error_argument.clone() {
            self.line(&format!("error_argument({name});"));
        }
    }

    fn line(&mut self, text: &str) {
        self.out += text;
        self.out.push('\n');
    }

    fn function(&mut self, function: &ApiFunction) {
        let Signature { parameters, result, variadic, foreign } = function.signature;
        let names = names(parameters);
        let mut list: Vec<String> =
            parameters.iter().zip(&names).map(|((_, ty), name)| declare(&ty.spelling, name)).collect();
        if *variadic {
            list.push("...".into());
        } else if list.is_empty() {
            list.push("void".into());
        }
        let name = match &function.table {
            Some(table) => format!("{table}.{}", function.name),
            None => function.name.to_string(),
        };
        let head = format!("{name}({})", list.join(", "));
        // A function that is called as an item of the language is told by its result.
        let head = if is_item(&name) { declare(&result.spelling, &head) } else { head };
        let impassable = parameters.iter().map(|(_, ty)| ty).chain([result]).any(|ty| !ty.is_value());
        if foreign.is_some() || impassable {
            self.line(&format!("{head} {{ unsupported; }}"));
            return;
        }
        if *variadic {
            let what = "which calls of it does a program make? `...` is not forwarded: `local(...)` answers in the guest, \
                        else `unsupported;`";
            self.line(&format!("{head} {{\n  {}\n}}", placeholder(what)));
            return;
        }
        let body = self.body(function, &names);
        if body.is_empty() {
            self.line(&format!("{head} {{ }}"));
        } else {
            self.line(&format!("{head} {{"));
            body.iter().for_each(|line| self.line(line));
            self.line("}");
        }
    }

    fn body(&self, function: &ApiFunction, names: &[String]) -> Vec<String> {
        self.with_subject(function, names, |subject| self.values(function, names, subject))
    }

    fn values(&self, function: &ApiFunction, names: &[String], subject: &Subject) -> Vec<String> {
        let Signature { parameters, result, .. } = function.signature;
        let ending = ending(function.name);
        let mut body = self.ended(ending, parameters, names);
        if body.iter().any(|line| line.contains("{ deallocate; }")) && self.says_nothing(function.signature) {
            let what = "when does it fail? `fails(ret < 0, -1);`, `fails(ret == 0, 0);`, or `fails(0, 0);`: never";
            body.push(format!("  {}", placeholder(what)));
        }
        let callback = parameters.iter().any(|(_, t)| matches!(t.kind, TypeKind::FunctionPointer(_)));
        for (n, ((own, ty), name)) in parameters.iter().zip(names).enumerate() {
            if self.error_argument.as_deref() == Some(own) && self.is_error_pointer(ty) {
                body.extend(self.guessed_errors(name));
                continue;
            }
            let freed = !matches!(ending, Ending::None | Ending::Keeps) && is_text(ty);
            let likely = subject.parameter(n);
            let said = match freed {
                // A copy would be freed, and the memory itself never.
                true => {
                    let what = format!("is `{name}` memory that this call frees? who allocated it?");
                    Some((Said::Asked(String::new(), what), None))
                }
                false => self.parameter(ty, name, callback, likely.as_ref()).map(|said| (said, likely)),
            };
            if let Some((said, likely)) = said {
                body.extend(self.say(&format!("argument({name})"), said, likely));
            }
        }
        let said = self.result(result).map(|what| Said::Asked(String::new(), what));
        match (said, subject.result()) {
            (Some(said), _) => body.extend(self.say("return_value", said, None)),
            // Without it the handle must be one that exists: a new object would be an error, so nothing is harmed.
            (None, Some(likely)) => body.extend(self.suggest("return_value", &likely)),
            (None, None) => {}
        }
        body
    }

    /// The error argument flows to the application: it needs no word, and gets one where guesses are compared with a specification.
    fn guessed_errors(&self, name: &str) -> Option<String> {
        let reason = "error-argument: the argument through which errors are reported";
        (self.options.level == Level::Guesses)
            .then(|| format!("  argument({name}) {{ guess(\"{reason}\") {{ out; }} }}"))
    }

    fn suggest(&self, scope: &str, likely: &Likely) -> Vec<String> {
        match self.options.level {
            Level::Comments => vec![format!("  // probably: {scope} {{ {} }}  ({})", likely.descriptors, likely.why)],
            Level::Guesses => vec![format!("  {scope} {{ {} }}", guess_block(likely))],
        }
    }

    fn say(&self, scope: &str, said: Said, likely: Option<Likely>) -> Vec<String> {
        match (said, likely, self.options.level) {
            (Said::Certain(text), _, _) => vec![format!("  {scope} {{ {text} }}")],
            (Said::Asked(_, _), Some(likely), Level::Guesses) => {
                vec![format!("  {scope} {{ {} }}", guess_block(&likely))]
            }
            (Said::Asked(certain, what), likely, _) => {
                let probably = likely.map(|g| format!("  // probably: {}  ({})", g.descriptors.trim_end(), g.why));
                let space = if certain.is_empty() { "" } else { " " };
                let text = format!("  {scope} {{ {certain}{space}{} }}", placeholder(&what));
                probably.into_iter().chain([text]).collect()
            }
        }
    }

    /// The effect of a function that ends objects on its handles: one that did nothing would leave the handle of an
    /// object that is gone.
    fn ended(&self, ending: Ending, parameters: &[(String, Type)], names: &[String]) -> Vec<String> {
        let handles: Vec<usize> = (0..parameters.len()).filter(|&n| self.is_handle(&parameters[n].1)).collect();
        let line = |what: &str| handles.iter().map(|&n| format!("  argument({}) {{ {what}; }}", names[n])).collect();
        match (ending, handles.as_slice()) {
            (Ending::None, _) | (_, []) => Vec::new(),
            (Ending::Keeps, [_]) => line("retain"),
            (Ending::Drops, [one]) if self.is_kept(&parameters[*one].1) => line("release"),
            (Ending::Ends | Ending::Drops, [_]) => line("deallocate"),
            _ => {
                let what = "which of its handles does it end? `argument(x) { deallocate; }`, or nothing";
                vec![format!("  {}", placeholder(what))]
            }
        }
    }

    /// True if a function returns a number of which nothing says whether it tells of an error.
    fn says_nothing(&self, signature: &Signature) -> bool {
        let told = self.error.as_ref().is_some_and(|error| error.ty == signature.result.spelling)
            || self.error_argument.is_some() && signature.parameters.iter().any(|(_, ty)| self.is_error_pointer(ty));
        !told && matches!(signature.result.kind, TypeKind::Int { .. })
    }

    /// True if a function that takes one handle of this type ends its object.
    fn is_ended(&self, ty: &Type) -> bool {
        let name = canonical_name(self.api.header, ty);
        let ends = |f: &ApiFunction| matches!(ending(f.name), Ending::Ends | Ending::Drops);
        let takes = |f: &ApiFunction| {
            let [(_, first), ..] = f.signature.parameters.as_slice() else { return false };
            canonical_name(self.api.header, first) == name
        };
        self.api.functions.iter().any(|f| ends(f) && takes(f))
    }

    /// True if a function adds a reference to handles of this type.
    fn is_kept(&self, ty: &Type) -> bool {
        let name = canonical_name(self.api.header, ty);
        let takes =
            |f: &ApiFunction| f.signature.parameters.iter().any(|(_, t)| canonical_name(self.api.header, t) == name);
        self.api.functions.iter().any(|f| ending(f.name) == Ending::Keeps && takes(f))
    }

    fn is_error_pointer(&self, ty: &Type) -> bool {
        self.error.as_ref().is_some_and(|error| ty.pointee().is_some_and(|t| t.spelling == error.ty))
    }

    fn is_handle(&self, ty: &Type) -> bool {
        if !matches!(ty.kind, TypeKind::Pointer { .. }) {
            return false;
        }
        let name = canonical_name(self.api.header, ty);
        self.handles
            .iter()
            .any(|(canonical, spelled)| *canonical == name || is_untyped(ty) && *spelled == bare(&ty.spelling))
    }

    /// The facts known of a parameter; None: nothing needs to be said.
    fn parameter(&self, ty: &Type, name: &str, callback: bool, likely: Option<&Likely>) -> Option<Said> {
        if self.is_handle(ty) {
            return None;
        }
        let ask = |certain: &str, what: String| Some(Said::Asked(certain.into(), what));
        match &ty.kind {
            TypeKind::FunctionPointer(_) => {
                ask("", format!("is `{name}` called back? `callback(...) {{ }}`, else `null`"))
            }
            // A length of its own beside it: the text may have no NUL.
            TypeKind::Pointer { to, constant } if is_character(to, *constant) => match likely {
                Some(_) => ask("in;", format!("has `{name}` a NUL at its end (`string`), or a length (`buffer(n)`)?")),
                None => Some(Said::Certain("in; string;".into())),
            },
            TypeKind::Pointer { to, constant } => Some(pointer(to, *constant, name, callback)),
            TypeKind::Struct(_) if self.translated(ty, 0) => {
                ask("", format!("which members of `{name}` are pointers to what? use `field(f) {{ }}`"))
            }
            _ => None,
        }
    }

    /// The question about a result; None: nothing needs to be said.
    fn result(&self, ty: &Type) -> Option<String> {
        if self.is_handle(ty) {
            return None;
        }
        let what = match &ty.kind {
            TypeKind::Pointer { to, .. } if to.spelling.trim_start_matches("const ") == "char" => {
                "who owns the string? the library (`string`), or the application, which frees it with which function (free())?"
            }
            TypeKind::Pointer { .. } => {
                "what is returned? `handle`, `buffer(n)`, `mapped(n)`, `token`, `device_address`, `function_pointer(name)`, ..."
            }
            TypeKind::FunctionPointer(_) => {
                "which function is returned? `function_pointer(name)`, or `null` if nobody calls it"
            }
            TypeKind::Struct(_) if self.translated(ty, 0) => {
                "which members of the result are pointers to what? use `field(f) { }`"
            }
            _ => return None,
        };
        Some(what.into())
    }

    /// True if a value holds pointers that are no handles.
    fn translated(&self, ty: &Type, depth: usize) -> bool {
        if self.is_handle(ty) || depth > 8 {
            return false;
        }
        match &ty.kind {
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => true,
            TypeKind::Struct(s) => s.fields.iter().any(|f| self.translated(&f.ty, depth + 1)),
            TypeKind::Array { of, .. } => self.translated(of, depth + 1),
            _ => false,
        }
    }
}

fn pointer(to: &Type, constant: bool, name: &str, callback: bool) -> Said {
    let (certain, what) = match &to.kind {
        TypeKind::Void if callback && !constant => (
            "",
            format!(
                "is `{name}` the callback's context (`userdata`)? else: which way does it flow, and how many bytes?"
            ),
        ),
        // It may be an address of a device's memory as well.
        TypeKind::Void if constant => {
            ("", format!("how many bytes has `{name}`? `in; buffer(n)`; or is it an address?"))
        }
        _ if constant => ("in;", format!("how many elements has `{name}`? `buffer(n)`, or one")),
        _ => (
            "",
            format!("which way does `{name}` flow (`in`, `out`), and how much is it (`buffer(n)`, or one element)?"),
        ),
    };
    Said::Asked(certain.into(), what)
}

fn guess_block(likely: &Likely) -> String {
    let reason = format!("{}: {}", likely.rule, likely.why).replace(['"', '\\'], "'");
    format!("guess(\"{reason}\") {{ {} }}", likely.descriptors.trim_end())
}

/// `const char *`
fn is_text(ty: &Type) -> bool {
    matches!(&ty.kind, TypeKind::Pointer { to, constant } if is_character(to, *constant))
}

fn is_character(ty: &Type, constant: bool) -> bool {
    ty.spelling == "const char" || ty.spelling == "char" && constant
}

fn placeholder(what: &str) -> String {
    format!("placeholder(\"{what}\");")
}

/// Names for all parameters: those of the header, where they can be told apart.
fn names(parameters: &[(String, Type)]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (n, (name, _)) in parameters.iter().enumerate() {
        let taken = all.contains(name);
        all.push(if taken { format!("{name}_{n}") } else { name.clone() });
    }
    all
}
