//! From a path to a [`Model`].

use crate::build::names::OWN_NAMES;
use crate::build::versions::vendor_library as library_path;
use crate::header::unit::Unit;
use crate::syntax::ast::{Argument, Block, Descriptor, Directive, Item, Statement, Text, TypeName};
use crate::syntax::diagnostics::{Diagnostic, Diagnostics, Severity};

use crate::header::{Header, HeaderFunction, HeaderVariable, Problem};
use crate::model::{Api, ExportedVariable, Launch, Model, Policy, Side, Utility};
use crate::names::{api_name_for, not_a_soname, not_an_api_name, not_below};
use crate::policy;
use crate::resolve;
use crate::syntax::parser::{Guess, parse};
use crate::syntax::source::{SourceFile, SourceFiles, Span};
use aviary_policy::PolicyError;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

mod environment;
mod sandbox;
mod utilities;
mod versions;

/// How a specification is to be read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Headers of the API beside those that the specification includes.
    pub headers: Vec<PathBuf>,
    pub include_dirs: Vec<PathBuf>,
    /// `NAME` or `NAME=VALUE`.
    pub defines: Vec<String>,
}

/// A specification without errors.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub model: Model,
    pub sources: SourceFiles,
    pub warnings: Vec<Diagnostic>,
}

pub fn load(path: &Path, options: &Options) -> Result<Loaded, Diagnostics> {
    let mut loader = Loader::new(options);
    let model = loader.load(path);
    let Loader { sources, mut diagnostics, .. } = loader;
    tidy(&mut diagnostics);
    match model {
        Some(model) if diagnostics.iter().all(|d| d.severity == Severity::Warning) => {
            Ok(Loaded { model, sources, warnings: diagnostics })
        }
        _ => Err(Diagnostics { list: diagnostics, sources }),
    }
}

/// One message per mistake, in the order of the source: folding conditions visits a descriptor often.
fn tidy(diagnostics: &mut Vec<Diagnostic>) {
    let mut seen: Vec<(Option<Span>, String)> = Vec::new();
    diagnostics.retain(|d| {
        let key = (d.span, d.message.clone());
        let new = !seen.contains(&key);
        if new {
            seen.push(key);
        }
        new
    });
    diagnostics.sort_by_key(|d| (d.severity != Severity::Error, d.span.map(|s| (s.file, s.start))));
}

/// A specification's items and what its headers declare.
pub(crate) struct Headers {
    pub items: Vec<Item>,
    pub guesses: Vec<Guess>,
    pub header: Header,
    /// The headers whose functions are the API.
    pub api_files: Vec<PathBuf>,
}

/// Reads a specification as far as it is needed to know its headers.
pub(crate) fn read_headers(path: &Path, options: &Options) -> Result<Headers, Diagnostics> {
    let mut loader = Loader::new(options);
    let headers = loader.headers(path);
    let broken = loader.diagnostics.iter().any(|d| d.severity == Severity::Error);
    headers.filter(|_| !broken).ok_or(Diagnostics { list: loader.diagnostics, sources: loader.sources })
}

struct Loader<'a> {
    options: &'a Options,
    sources: SourceFiles,
    /// Specification files in the order they were opened, by canonical path.
    texts: Vec<(PathBuf, u32)>,
    diagnostics: Vec<Diagnostic>,
    guesses: Vec<Guess>,
}

/// The first header of the API.
fn first_include(items: &[Item]) -> Option<Span> {
    items.iter().find_map(|item| match item {
        Item::Directive { kind: Directive::Include { .. }, span } => Some(*span),
        _ => None,
    })
}

/// The files of the vendor's library that are on this machine.
fn vendor_library(api: &Api) -> Vec<Vec<u8>> {
    let sonames = [&api.soname].into_iter().chain(&api.libraries).filter(|soname| !soname.is_empty());
    sonames.filter_map(|soname| std::fs::read(library_path(soname)?).ok()).collect()
}

/// The warning about a guess, which `--strict` makes an error.
fn guessed(guess: &Guess) -> Diagnostic {
    let message = match guess.reason.as_str() {
        "" => "a guess that nobody has confirmed".to_string(),
        reason => format!("a guess that nobody has confirmed: {reason}"),
    };
    let help = "check it against the documentation, then leave its descriptors without the `guess` around them";
    Diagnostic::warning(guess.span, message).label("guessed by `aviary spec init`").help(help).guess()
}

impl<'a> Loader<'a> {
    fn new(options: &'a Options) -> Self {
        let (sources, texts) = (SourceFiles::default(), Vec::new());
        Loader { options, sources, texts, diagnostics: Vec::new(), guesses: Vec::new() }
    }
}

impl Loader<'_> {
    fn load(&mut self, path: &Path) -> Option<Model> {
        let Headers { items, header, api_files, .. } = self.headers(path)?;
        let model = self.describe(&items);
        let folder = folder_of(path);
        let guest = self.utility_code(&folder, &items, &model, Side::Guest)?;
        let server = self.utility_code(&folder, &items, &model, Side::Server)?;
        let library = vendor_library(&model.api);
        let exported = self.variables(&items, &header, &api_files, &library);
        let functions = header.api_functions(&api_files);
        let undeclared = self.undeclared(&items, &library, &functions, &guest);
        let input = resolve::Input {
            items: &items,
            sources: &self.sources,
            header: &header,
            functions,
            guest: &guest,
            server: &server,
        };
        let (model, diagnostics) = resolve::resolve(&input, Model { exported, undeclared, ..model });
        self.diagnostics.extend(diagnostics);
        Some(model)
    }

    /// Variables of the vendor's library, which no call reaches: the guest library has them with the content that they have in
    /// the vendor's file.
    fn variables(
        &mut self,
        items: &[Item],
        header: &Header,
        api_files: &[PathBuf],
        library: &[Vec<u8>],
    ) -> Vec<ExportedVariable> {
        let declared: Vec<&HeaderVariable> = header.api_variables(api_files).collect();
        let Some(span) = first_include(items).filter(|_| !declared.is_empty()) else { return Vec::new() };
        let mut found = crate::exported::read_all(library, &declared);
        crate::exported::drop_dangling(&mut found);
        for (variable, found) in declared.iter().zip(&found) {
            let diagnostic = match found {
                Ok(_) if variable.constant => continue,
                Ok(_) => {
                    let message = format!("the variable `{}` is a copy in the guest library", variable.name);
                    Diagnostic::warning(span, message)
                        .label("declared here")
                        .help("it begins as the library's own; neither side sees what the other one writes to it later")
                }
                Err(lack) => {
                    let message = format!("the guest library does not have the variable `{}`: {lack}", variable.name);
                    Diagnostic::warning(span, message)
                        .label("declared here")
                        .help("programs that use it do not start with the guest library")
                }
            };
            self.diagnostics.push(diagnostic);
        }
        found.into_iter().flatten().collect()
    }

    /// Functions that the vendor's library exports and no header of the API declares: the dynamic linker looks for them in the
    /// guest library.
    fn undeclared(
        &mut self,
        items: &[Item],
        library: &[Vec<u8>],
        declared: &[&HeaderFunction],
        utilities: &Header,
    ) -> Vec<String> {
        let known = declared.iter().map(|f| f.symbol.as_ref().unwrap_or(&f.name));
        let own = utilities.functions.iter().filter(|f| f.defined && !f.internal).map(|f| &f.name);
        let mut known: HashSet<String> = known.chain(own).cloned().collect();
        let mut found: Vec<String> = library.iter().flat_map(|file| crate::exported::functions(file)).collect();
        // The guest library itself calls those of the C library.
        let system = ["libc.so.6", "libm.so.6", "libgcc_s.so.1"].into_iter().filter(|_| !found.is_empty());
        let system = system.filter_map(|soname| std::fs::read(library_path(soname)?).ok());
        known.extend(system.flat_map(|file| crate::exported::functions(&file)));
        found.retain(|name| !known.contains(name));
        found.sort_unstable();
        found.dedup();
        if let Some(span) = first_include(items).filter(|_| !found.is_empty()) {
            let names = found.iter().take(6).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let more = if found.len() > 6 { ", ..." } else { "" };
            let message =
                format!("the vendor's library exports {} functions that no included header declares", found.len());
            self.diagnostics.push(
                Diagnostic::warning(span, message)
                    .label(format!("not here: {names}{more}"))
                    .help("`#include` the headers that declare them; until then they are in the guest library as unsupported functions, so that programs that name one start"),
            );
        }
        found
    }

    /// The specification's items and its headers.
    fn headers(&mut self, path: &Path) -> Option<Headers> {
        let first = self.open(path, None)?;
        // Without the header a cast cannot be told from a product, so this pass only looks for declarations.
        let draft = self.parse_all(first, &|name| name.ends_with("_t"), true);
        let mut lines = Vec::new();
        let unit = self.header_unit(&folder_of(path), &draft, &mut lines);
        let header = self.read(&unit)?;
        self.problems(&header, &unit);
        let broken = !self.diagnostics.is_empty();
        self.guesses.clear();
        let items = self.parse_all(first, &|name| header.named_type(name).is_some(), false);
        let included = header.included.iter().filter(|(line, _)| lines.contains(line));
        let api_files = included.map(|(_, file)| file.clone()).collect();
        // With types missing only what the grammar says is certain.
        let guesses = std::mem::take(&mut self.guesses);
        (!broken).then_some(Headers { items, guesses, header, api_files })
    }

    fn open(&mut self, path: &Path, from: Option<&Text>) -> Option<u32> {
        let canonical = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if let Some((_, known)) = self.texts.iter().find(|(p, _)| *p == canonical) {
            return Some(*known);
        }
        let text = std::fs::metadata(path).and_then(|m| {
            if m.len() > SourceFile::MAX_SOURCE_BYTES {
                return Err(std::io::Error::other("the file is larger than 16 MiB"));
            }
            std::fs::read(path)
        });
        match text {
            Ok(bytes) => {
                // A byte-order mark or a stray byte is no reason to refuse a file.
                let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
                let file = self.sources.add(path.to_path_buf(), text);
                self.texts.push((canonical, file));
                Some(file)
            }
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                self.diagnostics.push(match from {
                    Some(text) => Diagnostic::error(text.span, message).label("named here"),
                    None => Diagnostic::global(message),
                });
                None
            }
        }
    }

    /// All items of a file and its imports, imported ones where they are imported.
    fn parse_all(&mut self, first: u32, is_type: &dyn Fn(&str) -> bool, draft: bool) -> Vec<Item> {
        let mut items = Vec::new();
        let kept = self.diagnostics.len();
        self.parse_file(first, is_type, &mut vec![], &mut items);
        if draft {
            // The second pass says it better; it also opens the same files.
            self.diagnostics.truncate(kept);
        }
        items
    }

    fn parse_file(&mut self, file: u32, is_type: &dyn Fn(&str) -> bool, open: &mut Vec<u32>, into: &mut Vec<Item>) {
        if open.contains(&file) {
            return;
        }
        open.push(file);
        let Some(source) = self.sources.file(file) else { return };
        let folder = folder_of(&source.path);
        let parsed = parse(file, &source.text, is_type);
        self.diagnostics.extend(parsed.diagnostics);
        self.diagnostics.extend(parsed.guesses.iter().map(guessed));
        self.guesses.extend(parsed.guesses);
        for item in parsed.items {
            match &item {
                Item::Import(path) => {
                    if let Some(imported) = self.open(&folder.join(&path.value), Some(path)) {
                        self.parse_file(imported, is_type, open, into);
                    }
                }
                _ => into.push(item),
            }
        }
    }

    /// The folders of all specification files: quoted headers are looked up beside them.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        for (path, file) in &self.texts {
            let own = self.sources.file(*file).map(|f| folder_of(&f.path));
            if path.extension().is_some_and(|e| e == "lapis")
                && let Some(own) = own
                && !folders.contains(&own)
            {
                folders.push(own);
            }
        }
        folders
    }

    fn include_dirs(&self) -> Vec<PathBuf> {
        self.options.include_dirs.iter().cloned().chain(self.folders()).collect()
    }

    fn unit(&self, folder: &Path, name: &str) -> Unit {
        Unit::new(folder.join(name), &self.include_dirs(), &self.options.defines)
    }

    /// The headers and the specification's own declarations; `lines` gets those of the API's headers.
    fn header_unit(&self, folder: &Path, items: &[Item], lines: &mut Vec<usize>) -> Unit {
        let mut unit = self.unit(folder, "(headers).c");
        for header in &self.options.headers {
            lines.push(unit.push(&format!("#include {}", quoted(header)), None));
        }
        for item in items {
            if let Item::Directive { kind, span } = item {
                let line = unit.push(&c_line(kind), Some(*span));
                if matches!(kind, Directive::Include { .. }) {
                    lines.push(line);
                }
            }
        }
        for header in ["stddef.h", "stdint.h", "sys/types.h"] {
            unit.push(&format!("#include <{header}>"), None);
        }
        for item in items {
            if let Item::Declaration { code, span } = item {
                unit.push(code, Some(*span));
            }
        }
        unit
    }

    fn read(&mut self, unit: &Unit) -> Option<Header> {
        match Header::parse(unit) {
            Ok(header) => Some(header),
            Err(error) => {
                self.diagnostics.push(Diagnostic::global(error.to_string()));
                None
            }
        }
    }

    /// The C compiler's errors, where the specification caused them.
    fn problems(&mut self, header: &Header, unit: &Unit) {
        for problem in &header.problems {
            let diagnostic = self.problem(problem, unit);
            self.diagnostics.push(diagnostic);
        }
    }

    fn problem(&self, problem: &Problem, unit: &Unit) -> Diagnostic {
        let place = problem.own.then(|| unit.origin(problem.line, &self.sources)).flatten();
        match (place, &problem.file) {
            (Some(span), _) => {
                let diagnostic = Diagnostic::error(span, format!("in C text: {}", problem.message))
                    .label("the C compiler stumbles here");
                if problem.message.contains("file not found") {
                    diagnostic.help("`-I DIR` adds a folder to look in")
                } else {
                    diagnostic
                }
            }
            (None, Some(file)) if !problem.own => Diagnostic::global(format!(
                "in {}:{}:{}: {}",
                file.display(),
                problem.line,
                problem.column,
                problem.message
            )),
            _ => Diagnostic::global(format!("in the headers: {}", problem.message)),
        }
    }

    /// Reports a second item of which a specification has one.
    fn only(&mut self, first: &mut Option<Span>, span: Span, what: &str, why: &'static str) {
        if let Some(first) = first.replace(span) {
            let second = Diagnostic::error(span, format!("a second {what}"));
            self.diagnostics.push(second.label(why).related(first, "the first"));
        }
    }

    /// The part of the model that needs no header.
    fn describe(&mut self, items: &[Item]) -> Model {
        let mut model =
            Model { include_dirs: self.include_dirs(), defines: self.options.defines.clone(), ..Model::default() };
        model.preamble.extend(self.options.headers.iter().map(|h| format!("#include {}", quoted(h))));
        let (mut named, mut scheduled): (Option<Span>, Option<Span>) = (None, None);
        for item in items {
            match item {
                Item::Directive { kind, .. } => model.preamble.push(c_line(kind)),
                Item::Api { name, version, soname, span } => {
                    self.only(&mut named, *span, "`api`", "one library has one identity");
                    self.api_name(name);
                    self.soname(soname);
                    model.api.name.clone_from(&name.value);
                    model.api.version.clone_from(&version.value);
                    model.api.soname.clone_from(&soname.value);
                }
                Item::Policy(text) => {
                    self.only(&mut scheduled, text.span, "`policy`", "one program schedules a device");
                    model.policy = self.policy(text);
                }
                Item::DeclareMetadata(structure) => note_metadata(&mut model, structure),
                Item::Type { body, .. } => {
                    type_metadata(body).for_each(|structure| note_metadata(&mut model, structure));
                }
                Item::Declaration { code, .. } => model.declarations.push(code.clone()),
                Item::Utility { side, code, span } => {
                    model.utilities.push(Utility { side: *side, code: code.clone(), span: *span });
                }
                Item::UtilityFile { side, path } => self.utility_file(*side, path, &mut model),
                Item::Environment { name, value } => {
                    model.launch.push(Launch::Environment { name: name.value.clone(), value: value.value.clone() });
                }
                Item::File { path, content } => {
                    self.build_file(path);
                    model.launch.push(Launch::File { path: path.value.clone(), content: content.value.clone() });
                }
                Item::Sandbox { rules, .. } => self.sandbox(rules, model.sandbox.get_or_insert_default()),
                Item::PassEnvironment(names) => self.pass_environment(names, &mut model.passed_variables),
                Item::DropIn { soname, only_if_missing } => {
                    self.soname(soname);
                    model
                        .launch
                        .push(Launch::DropIn { soname: soname.value.clone(), only_if_missing: *only_if_missing });
                }
                Item::Library(soname) => {
                    self.soname(soname);
                    model.api.libraries.push(soname.value.clone());
                }
                Item::VersionsAny => model.api.any_version = true,
                Item::Versions(pattern) => self.versions(pattern, &mut model.api.versions),
                Item::Program(name) => {
                    self.program(name);
                    model.launch.push(Launch::Program { name: name.value.clone() });
                }
                _ => {}
            }
        }
        model
    }

    /// A folder is named after an API, and guests ask nodes for it by this name.
    fn api_name(&mut self, text: &Text) {
        if let Some(wrong) = not_an_api_name(&text.value) {
            let message = "the name of an API is a plain file name of letters, digits, `_` and `-`";
            let near = api_name_for(&text.value);
            let diagnostic = Diagnostic::error(text.span, message).label(wrong);
            self.diagnostics.push(diagnostic.help(format!(
                "the build makes a folder of this name, and guests ask nodes for it: `api(\"{near}\", ...)`"
            )));
        }
    }

    /// The build writes the guest library under this name: a path would be the vendor's own file.
    fn soname(&mut self, text: &Text) {
        let own = OWN_NAMES.contains(&text.value.as_str());
        if let Some(wrong) = not_a_soname(&text.value).or(own.then_some("the build has a file of this name")) {
            self.diagnostics.push(
                Diagnostic::error(text.span, "a soname is a plain file name")
                    .label(wrong)
                    .help("write the name by which programs ask the dynamic linker, `libname.so.1`; where the vendor's library lies says LD_LIBRARY_PATH of the node"),
            );
        }
    }

    fn program(&mut self, text: &Text) {
        if let Some(wrong) = not_a_soname(&text.value) {
            self.diagnostics.push(
                Diagnostic::error(text.span, "a program is named by a plain file name")
                    .label(wrong)
                    .help("write the name that users type; `aviary` looks for the program beside itself"),
            );
        }
    }

    /// Reports a file of the specification that would not lie in the build folder, or be one of the build's own.
    fn build_file(&mut self, text: &Text) {
        let first = text.value.split('/').next().unwrap_or_default();
        let own = OWN_NAMES.contains(&first);
        let wrong = not_below(&text.value).or(own.then_some("the build has a file of this name"));
        if let Some(wrong) = wrong {
            let message = "`file` names a file below the build folder";
            self.diagnostics.push(
                Diagnostic::error(text.span, message)
                    .label(wrong)
                    .help("give a relative path without `.` and `..`; `{dir}` in its content is the folder"),
            );
        }
    }

    /// Compiled and verified here: a node loads it when nobody looks any more.
    fn policy(&mut self, text: &Text) -> Option<Policy> {
        let folder = self.sources.file(text.span.file).map(|f| folder_of(&f.path)).unwrap_or_default();
        match policy::object(&folder.join(&text.value)) {
            Ok(object) => Some(Policy { file: text.value.clone(), object: Ok(object) }),
            Err(PolicyError::NoCompiler(tried)) => {
                let why = PolicyError::NoCompiler(tried).to_string();
                let warning = Diagnostic::warning(text.span, format!("the policy `{}` is not verified", text.value));
                self.diagnostics.push(warning.label(why.clone()));
                Some(Policy { file: text.value.clone(), object: Err(why) })
            }
            Err(error) => {
                self.diagnostics.push(policy::diagnostic(text, &error));
                None
            }
        }
    }
}

/// The structures that a `type` block names for its handles.
fn type_metadata(body: &Block) -> impl Iterator<Item = &TypeName> {
    let named = |statement| match statement {
        &Statement::Descriptor(Descriptor { ref name, arguments: Some(ref arguments), .. })
            if name.text == "metadata" =>
        {
            arguments.iter().find_map(|a| if let Argument::Type(structure) = a { Some(structure) } else { None })
        }
        _ => None,
    };
    body.statements.iter().filter_map(named)
}

fn note_metadata(model: &mut Model, structure: &TypeName) {
    let spelling = structure.spelling();
    if !model.metadata.contains(&spelling) {
        model.metadata.push(spelling);
    }
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// A header of the command line: a file, or a name for the include path.
pub(crate) fn quoted(header: &Path) -> String {
    match std::fs::canonicalize(header) {
        Ok(file) if file.is_file() => format!("\"{}\"", file.display()),
        _ => format!("<{}>", header.display()),
    }
}

fn c_line(directive: &Directive) -> String {
    match directive {
        Directive::Include { path, quoted: true } | Directive::Support { path, quoted: true } => {
            format!("#include \"{path}\"")
        }
        Directive::Include { path, .. } | Directive::Support { path, .. } => format!("#include <{path}>"),
        Directive::Define(text) => format!("#define {text}"),
    }
}
