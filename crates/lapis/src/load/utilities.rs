//! Utility code as the C compiler sees it: which functions each side has, and mistakes where they are.

use super::{Loader, folder_of};
use crate::header::Header;
use crate::header::unit::Unit;
use crate::model::{Model, Side, UtilityFile};
use crate::syntax::ast::{Item, Text};
use crate::syntax::diagnostics::Diagnostic;
use crate::syntax::source::Span;
use crate::utility;
use std::path::Path;

impl Loader<'_> {
    pub(super) fn utility_file(&mut self, side: Side, path: &Text, model: &mut Model) {
        let folder = self.sources.file(path.span.file).map(|f| folder_of(&f.path)).unwrap_or_default();
        let path_here = folder.join(&path.value);
        if let Some(file) = self.open(&path_here, Some(path))
            && let Some(source) = self.sources.file(file)
        {
            let span = Span::new(file, 0, source.text.len());
            let path = source.path.canonicalize().unwrap_or(path_here);
            model.utility_files.push(UtilityFile { side, path, span });
        }
    }

    /// The functions and variables of one side's utility code: the code in the specification is one unit, each file another.
    pub(super) fn utility_code(&mut self, folder: &Path, items: &[Item], model: &Model, side: Side) -> Option<Header> {
        let inline = model.utilities.iter().any(|u| u.side.includes(side));
        let files: Vec<&UtilityFile> = utility::files(model, side).collect();
        if !inline && files.is_empty() {
            return Some(Header::default());
        }
        let unit = self.inline_unit(folder, items, model, side);
        let mut code = self.read(&unit)?;
        self.problems(&code, &unit);
        let types = utility::types_header(model);
        for file in files {
            let Some(text) = self.sources.file(file.span.file).map(|s| s.text.clone()) else { continue };
            let mut unit = Unit::new(file.path.clone(), &self.include_dirs(), &[]);
            prepare(&mut unit, folder, model, side);
            unit.virtual_files.push((folder.join(utility::types_header_name(model)), types.clone()));
            unit.push(&text, Some(file.span));
            let own = self.read(&unit)?;
            self.file_problems(&own, &unit, &text, model, side);
            code.add_unit(own);
        }
        Some(code)
    }

    /// Functions that stand in the specification itself. The runtime's functions count as its own.
    fn inline_unit(&self, folder: &Path, items: &[Item], model: &Model, side: Side) -> Unit {
        let mut unit = self.header_unit(folder, items, &mut Vec::new());
        unit.path = folder.join(if side == Side::Guest { "(guest utilities).c" } else { "(server utilities).c" });
        prepare(&mut unit, folder, model, side);
        let runtime = if side == Side::Guest { "aviary/guest.h" } else { "aviary/server.h" };
        for (_, text) in
            utility::RUNTIME_HEADERS.iter().filter(|(name, _)| *name == "aviary/common.h" || *name == runtime)
        {
            unit.push(text, None);
        }
        unit.push(&utility::metadata_kinds(model), None);
        for utility in model.utilities.iter().filter(|u| u.side.includes(side)) {
            unit.push(&utility.code, Some(utility.span));
        }
        unit
    }

    /// Mistakes in a utility file; where it lacks its headers, a remedy.
    fn file_problems(&mut self, header: &Header, unit: &Unit, text: &str, model: &Model, side: Side) {
        let types = utility::types_header_name(model);
        let complete = text.contains(&types) || text.contains("#include \"");
        for (n, problem) in header.problems.iter().enumerate() {
            let diagnostic = self.problem(problem, unit);
            let diagnostic = if n == 0 && !complete { lacks_headers(diagnostic, &types, side) } else { diagnostic };
            self.diagnostics.push(diagnostic);
        }
    }
}

fn lacks_headers(diagnostic: Diagnostic, types: &str, side: Side) -> Diagnostic {
    let runtime = if side == Side::Guest { "guest" } else { "server" };
    diagnostic.help(format!(
        "each utility file is compiled by itself: it includes what it uses, such as `#include \"{types}\"` (the \
         specification's types) and `#include <aviary/{runtime}.h>` (the runtime's functions)"
    ))
}

/// The surroundings in which a side's utility code is compiled.
fn prepare(unit: &mut Unit, folder: &Path, model: &Model, side: Side) {
    unit.defines = utility::defines(model, side);
    unit.own_only = true;
    // In the specification's folder, which is looked through anyway: nothing is written to be checked.
    unit.virtual_files.extend(utility::RUNTIME_HEADERS.map(|(name, text)| (folder.join(name), text.to_string())));
}
