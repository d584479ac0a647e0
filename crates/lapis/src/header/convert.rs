//! From libclang's entities to plain data.

use super::declarator;
use super::macros::Macro;
use super::unit::Unit;
use super::{Header, HeaderError, HeaderFunction, HeaderVariable, Notes, Problem};
use crate::model::{Field, Signature, Struct, Type, TypeKind};
use clang::diagnostic::Severity;
use clang::{Clang, Entity, EntityKind, EntityVisitResult, Index, Unsaved};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The binding allows one instance in a process.
static LIBCLANG: Mutex<()> = Mutex::new(());

pub fn parse(unit: &Unit) -> Result<Header, HeaderError> {
    let _turn = LIBCLANG.lock().unwrap_or_else(PoisonError::into_inner);
    let clang = Clang::new().map_err(HeaderError::Library)?;
    let index = Index::new(&clang, false, false);
    let mut files = vec![Unsaved::new(&unit.path, &unit.text)];
    files.extend(unit.virtual_files.iter().map(|(path, text)| Unsaved::new(path, text)));
    let translation_unit = index
        .parser(&unit.path)
        .arguments(&arguments(unit))
        .unsaved(&files)
        .detailed_preprocessing_record(!unit.own_only)
        .parse()
        .map_err(|e| HeaderError::Parse(e.to_string()))?;
    let mut reader = Reader { main: unit.path.clone(), ..Reader::default() };
    // Texts that exist only in memory.
    reader.files.insert(unit.path.clone(), unit.text.clone().into_bytes());
    reader.files.extend(unit.virtual_files.iter().map(|(path, text)| (path.clone(), text.clone().into_bytes())));
    reader.problems(&translation_unit);
    for entity in translation_unit.get_entity().get_children() {
        let code = matches!(entity.get_kind(), EntityKind::FunctionDecl | EntityKind::VarDecl);
        if !unit.own_only || code && file_of(entity).as_ref() == Some(&reader.main) {
            reader.entity(entity);
        }
    }
    Ok(reader.header)
}

fn arguments(unit: &Unit) -> Vec<String> {
    let mut all: Vec<String> = ["-xc", "-std=gnu17", "-ferror-limit=0", "-w"].map(String::from).into();
    // Other compilers of C17 only warn of these.
    let lenient =
        ["implicit-function-declaration", "implicit-int", "int-conversion", "incompatible-function-pointer-types"];
    all.extend(lenient.iter().map(|what| format!("-Wno-error={what}")));
    all.extend(unit.include_dirs.iter().map(|d| format!("-I{}", d.display())));
    all.extend(unit.defines.iter().map(|d| format!("-D{d}")));
    all
}

/// How many pointers are followed from struct to struct; what lies behind more of them is incomplete.
/// Headers with tables of functions would otherwise unfold into millions of types.
const NESTING: usize = 4;

/// A longer declaration is not read for the words in it.
const MAX_DECLARATION_BYTES: usize = 8192;

#[derive(Default)]
struct Reader {
    header: Header,
    main: PathBuf,
    /// Structs being converted, outermost first.
    open: Vec<String>,
    /// Pointers from one of them to the next.
    hops: usize,
    /// Typedefs converted at the top, by name.
    known: HashMap<String, Type>,
    /// Headers by path: whatever bytes they hold, libclang counts in them.
    files: HashMap<PathBuf, Vec<u8>>,
}

impl Reader {
    fn problems(&mut self, unit: &clang::TranslationUnit) {
        for diagnostic in unit.get_diagnostics() {
            if diagnostic.get_severity() < Severity::Error {
                continue;
            }
            let location = diagnostic.get_location().get_file_location();
            let file = location.file.map(|f| f.get_path());
            self.header.problems.push(Problem {
                message: diagnostic.get_text(),
                own: file.as_ref() == Some(&self.main),
                file,
                line: location.line as usize,
                column: location.column as usize,
            });
        }
    }

    fn entity(&mut self, entity: Entity) {
        match entity.get_kind() {
            EntityKind::FunctionDecl => self.function(entity),
            EntityKind::TypedefDecl => self.typedef(entity),
            EntityKind::StructDecl | EntityKind::UnionDecl => self.tag(entity),
            EntityKind::EnumDecl => self.enumeration(entity),
            EntityKind::VarDecl => self.variable(entity),
            EntityKind::MacroDefinition => self.define(entity),
            EntityKind::InclusionDirective => self.inclusion(entity),
            _ => {}
        }
    }

    fn function(&mut self, entity: Entity) {
        let (Some(name), Some(ty)) = (entity.get_name(), entity.get_type()) else { return };
        let defined = entity.is_definition();
        let symbol = symbol(entity, &name);
        if let Some(known) = self.header.functions.iter_mut().find(|f| f.name == name) {
            known.defined |= defined;
            known.symbol = symbol.or(known.symbol.take());
            return;
        }
        let signature = self.signature(ty, Some(entity));
        let file = file_of(entity).unwrap_or_default();
        let internal = entity.get_linkage() == Some(clang::Linkage::Internal);
        let notes = self.notes(entity);
        self.header.functions.push(HeaderFunction { name, symbol, signature, file, defined, internal, notes });
    }

    fn variable(&mut self, entity: Entity) {
        let (Some(name), Some(ty)) = (entity.get_name(), entity.get_type()) else { return };
        self.header.variables.push(name.clone());
        let external = entity.get_storage_class() == Some(clang::StorageClass::Extern) && !entity.is_definition();
        if let (true, Some(file)) = (external, file_of(entity))
            && !self.header.externals.iter().any(|known| known.name == name)
        {
            let constant = is_constant(ty);
            let ty = self.convert(ty, Some(entity));
            self.header.externals.push(HeaderVariable { name, file, ty, constant });
        }
    }

    fn typedef(&mut self, entity: Entity) {
        let (Some(name), Some(ty)) = (entity.get_name(), entity.get_type()) else { return };
        let converted = self.convert(ty, Some(entity));
        if let Some(underlying) = entity.get_typedef_underlying_type() {
            self.header.aliases.insert(name.clone(), underlying.get_display_name());
        }
        self.header.typedefs.insert(name, converted);
    }

    fn tag(&mut self, entity: Entity) {
        let Some(ty) = entity.get_type() else { return };
        let spelling = ty.get_display_name();
        let converted = self.convert(ty, None);
        let complete = !matches!(converted.kind, TypeKind::Incomplete);
        if complete || !self.header.tags.contains_key(&spelling) {
            if complete {
                self.note_members(entity, &spelling);
                self.header.tag_files.extend(file_of(entity).map(|file| (spelling.clone(), file)));
            }
            self.header.tags.insert(spelling, converted);
        }
    }

    fn enumeration(&mut self, entity: Entity) {
        let signed = entity.get_enum_underlying_type().is_some_and(|t| t.is_signed_integer());
        let mut names = Vec::new();
        for constant in entity.get_children() {
            if let (Some(name), Some((s, u))) = (constant.get_name(), constant.get_enum_constant_value()) {
                let value = if signed { i128::from(s) } else { i128::from(u) };
                names.push(name.clone());
                self.header.enumerators.insert(name, value);
            }
        }
        if let Some(ty) = entity.get_type() {
            let converted = self.convert(ty, None);
            self.header.enumerations.insert(ty.get_display_name(), names);
            self.header.tags.insert(ty.get_display_name(), converted);
        }
    }

    fn note_members(&mut self, structure: Entity, spelling: &str) {
        for field in structure.get_children() {
            let (EntityKind::FieldDecl, Some(name), Some(ty)) = (field.get_kind(), field.get_name(), field.get_type())
            else {
                continue;
            };
            if ty.get_canonical_type().get_kind() == clang::TypeKind::Pointer {
                let notes = self.notes(field);
                self.header.members.insert((spelling.to_string(), name), notes);
            }
        }
    }

    /// A declaration may begin in a macro: it is read from where that stands to the next `;`.
    fn notes(&mut self, entity: Entity) -> Notes {
        let comment = entity.get_comment().unwrap_or_default();
        let start = entity.get_range().map(|range| range.get_start().get_expansion_location());
        let Some((path, at)) = start.and_then(|s| Some((s.file?.get_path(), s.offset as usize))) else {
            return Notes { comment, text: String::new() };
        };
        let bytes = self.files.entry(path.clone()).or_insert_with(|| std::fs::read(&path).unwrap_or_default());
        let rest = bytes.get(at..).unwrap_or_default();
        let rest = &rest[..rest.len().min(MAX_DECLARATION_BYTES)];
        let end = rest.iter().position(|b| matches!(b, b';' | b'{')).unwrap_or(rest.len());
        Notes { comment, text: String::from_utf8_lossy(&rest[..end]).into_owned() }
    }

    fn define(&mut self, entity: Entity) {
        let Some(range) = entity.get_range() else { return };
        let (start, end) = (range.get_start().get_file_location(), range.get_end().get_file_location());
        let (Some(file), from, to) = (start.file, start.offset as usize, end.offset as usize) else { return };
        let path = file.get_path();
        let text = self.files.entry(path.clone()).or_insert_with(|| std::fs::read(&path).unwrap_or_default());
        let Some(definition) = text.get(from..to) else { return };
        let definition = String::from_utf8_lossy(definition).replace("\\\r\n", " ").replace("\\\n", " ");
        if let Some((name, definition)) = Macro::from_definition(&definition) {
            self.header.macros.insert(name, definition);
        }
    }

    fn inclusion(&mut self, entity: Entity) {
        if file_of(entity).as_ref() != Some(&self.main) {
            return;
        }
        let line = entity.get_location().map_or(0, |l| l.get_file_location().line as usize);
        if let Some(file) = entity.get_file() {
            self.header.included.push((line, file.get_path()));
        }
    }

    fn convert(&mut self, ty: clang::Type, declared: Option<Entity>) -> Type {
        let spelling = ty.get_display_name();
        if self.open.is_empty()
            && let Some(known) = self.known.get(&spelling)
        {
            return known.clone();
        }
        let kind = self.kind(ty, declared, &spelling);
        let converted = Type { kind, spelling, handle: None };
        if self.open.is_empty() && ty.get_kind() == clang::TypeKind::Typedef {
            self.known.insert(converted.spelling.clone(), converted.clone());
        }
        converted
    }

    fn kind(&mut self, ty: clang::Type, declared: Option<Entity>, spelling: &str) -> TypeKind {
        use clang::TypeKind as K;
        let size = ty.get_sizeof().unwrap_or(0);
        match ty.get_kind() {
            K::Void => TypeKind::Void,
            K::Bool | K::UChar | K::CharU | K::UShort | K::UInt | K::ULong | K::ULongLong | K::Char16 | K::Char32 => {
                TypeKind::Int { bytes: size, signed: false }
            }
            K::CharS | K::SChar | K::Short | K::Int | K::Long | K::LongLong | K::WChar => {
                TypeKind::Int { bytes: size, signed: true }
            }
            K::Float | K::Double => TypeKind::Float { bytes: size },
            // No register of ours holds them: they are bytes, which only C passes by value.
            K::Half
            | K::Float16
            | K::LongDouble
            | K::Float128
            | K::Int128
            | K::UInt128
            | K::Complex
            | K::Vector
            | K::ExtVector => bytes(ty, spelling),
            K::Enum => {
                let underlying = ty.get_declaration().and_then(|d| d.get_enum_underlying_type());
                let signed = underlying.is_some_and(|t| t.is_signed_integer());
                TypeKind::Int { bytes: if size == 0 { 4 } else { size }, signed }
            }
            K::Pointer => self.pointer(ty, declared),
            K::Record => self.record(ty, spelling),
            K::Typedef => {
                let declaration = ty.get_declaration();
                match declaration.and_then(|d| d.get_typedef_underlying_type()) {
                    Some(underlying) => self.convert(underlying, declaration).kind,
                    None => TypeKind::Incomplete,
                }
            }
            K::Elaborated => match ty.get_elaborated_type() {
                Some(named) => self.convert(named, declared).kind,
                None => TypeKind::Incomplete,
            },
            K::ConstantArray => {
                let of = match ty.get_element_type() {
                    Some(element) => self.convert(element, None),
                    None => return TypeKind::Incomplete,
                };
                TypeKind::Array { of: Box::new(of), count: ty.get_size().unwrap_or(0) }
            }
            K::IncompleteArray | K::VariableArray => match ty.get_element_type() {
                Some(element) => TypeKind::Array { of: Box::new(self.convert(element, None)), count: 0 },
                None => TypeKind::Incomplete,
            },
            K::FunctionPrototype | K::FunctionNoPrototype => TypeKind::Incomplete,
            _ => self.unusual(ty, declared),
        }
    }

    /// Attributes and parentheses around a type, which libclang only shows by the canonical type.
    fn unusual(&mut self, ty: clang::Type, declared: Option<Entity>) -> TypeKind {
        let canonical = ty.get_canonical_type();
        if canonical == ty || canonical.get_kind() == ty.get_kind() {
            return unexposed(ty);
        }
        self.convert(canonical, declared).kind
    }

    fn pointer(&mut self, ty: clang::Type, declared: Option<Entity>) -> TypeKind {
        let Some(to) = ty.get_pointee_type() else { return TypeKind::Incomplete };
        let inside = usize::from(!self.open.is_empty());
        self.hops += inside;
        let kind = self.pointer_to(to, declared);
        self.hops -= inside;
        kind
    }

    fn pointer_to(&mut self, to: clang::Type, declared: Option<Entity>) -> TypeKind {
        use clang::TypeKind as K;
        if matches!(to.get_canonical_type().get_kind(), K::FunctionPrototype | K::FunctionNoPrototype) {
            // A typedef of the function type itself knows the names of the parameters better.
            let typedef = Some(to).filter(|t| t.get_kind() == K::Typedef).and_then(|t| t.get_declaration());
            return TypeKind::FunctionPointer(Box::new(self.signature(to, typedef.or(declared))));
        }
        let constant = to.is_const_qualified();
        TypeKind::Pointer { to: Box::new(self.convert(to, None)), constant }
    }

    fn signature(&mut self, ty: clang::Type, declared: Option<Entity>) -> Signature {
        let entities = declared.map(parameters_of).unwrap_or_default();
        let types = ty.get_argument_types().unwrap_or_default();
        let parameters = types.into_iter().enumerate().map(|(n, ty)| {
            let entity = entities.get(n).copied();
            let name = entity.and_then(|e| e.get_name()).filter(|n| !n.is_empty());
            (name.unwrap_or_else(|| format!("argument{n}")), self.parameter(ty, entity))
        });
        let parameters = parameters.collect();
        let result = match ty.get_result_type() {
            Some(result) => self.convert(result, None),
            None => Type { kind: TypeKind::Void, spelling: "void".into(), handle: None },
        };
        // libclang calls `f()` variadic; in the headers of APIs it means `f(void)`.
        let variadic = ty.is_variadic() && ty.get_kind() != clang::TypeKind::FunctionNoPrototype;
        Signature { parameters, result, variadic, foreign: foreign(ty) }
    }

    /// A parameter that is declared as an array or a function is a pointer.
    fn parameter(&mut self, ty: clang::Type, declared: Option<Entity>) -> Type {
        use clang::TypeKind as K;
        if !matches!(ty.get_canonical_type().get_kind(), K::FunctionPrototype | K::FunctionNoPrototype) {
            return decayed(self.convert(ty, declared));
        }
        let spelling = declare_pointer(&ty.get_display_name());
        Type { kind: self.pointer_to(ty, declared), spelling, handle: None }
    }

    fn record(&mut self, ty: clang::Type, spelling: &str) -> TypeKind {
        let key = ty.get_declaration().and_then(|d| d.get_usr()).map_or_else(|| spelling.to_string(), |u| u.0);
        let (Ok(size), Ok(align)) = (ty.get_sizeof(), ty.get_alignof()) else { return TypeKind::Incomplete };
        if self.open.contains(&key) || self.hops >= NESTING {
            return TypeKind::Incomplete;
        }
        self.open.push(key);
        let mut fields = Vec::new();
        self.fields(ty, 0, &mut fields);
        self.open.pop();
        let union = ty.get_declaration().is_some_and(|d| d.get_kind() == EntityKind::UnionDecl);
        let name = unqualified(spelling).to_string();
        TypeKind::Struct(Struct { name, size, align, union, fields })
    }

    /// Bit-fields are left out: no descriptor can mean them.
    fn fields(&mut self, ty: clang::Type, base: usize, into: &mut Vec<Field>) {
        for field in ty.get_fields().unwrap_or_default() {
            let (Some(ty), Ok(bits)) = (field.get_type(), field.get_offset_of_field()) else { continue };
            let offset = base + bits / 8;
            let record = ty.get_canonical_type();
            let anonymous = record.get_declaration().is_some_and(|d| d.is_anonymous_record_decl());
            if anonymous {
                self.fields(record, offset, into);
            } else if !field.is_bit_field()
                && let Some(name) = field.get_name()
            {
                let ty = self.convert(ty, Some(field));
                into.push(Field { name, offset, ty });
            }
        }
    }
}

/// A value of a type that no register of ours holds.
fn bytes(ty: clang::Type, spelling: &str) -> TypeKind {
    let (Ok(size), Ok(align)) = (ty.get_sizeof(), ty.get_alignof()) else { return TypeKind::Incomplete };
    let name = unqualified(spelling).to_string();
    TypeKind::Struct(Struct { name, size, align, union: false, fields: Vec::new() })
}

/// Types that the binding does not know: complex numbers, some vectors, and `_Atomic(T)`, which is passed as the number is.
fn unexposed(ty: clang::Type) -> TypeKind {
    let spelling = ty.get_canonical_type().get_display_name();
    let own = unqualified(&spelling);
    if own.starts_with("_Complex ") || own == "__bf16" || own.contains("__attribute__((ext_vector_type(") {
        return bytes(ty, &ty.get_display_name());
    }
    let Some(inner) = unqualified(&spelling).strip_prefix("_Atomic(").and_then(|t| t.strip_suffix(')')) else {
        return TypeKind::Incomplete;
    };
    let number = |word: &str| ["char", "short", "int", "long", "signed", "unsigned", "_Bool"].contains(&word);
    match ty.get_sizeof() {
        Ok(8) if inner.ends_with('*') => {
            let to = Type { kind: TypeKind::Void, spelling: "void".into(), handle: None };
            TypeKind::Pointer { to: Box::new(to), constant: false }
        }
        Ok(bytes) if inner.split(' ').all(number) => {
            TypeKind::Int { bytes, signed: !inner.contains("unsigned") && inner != "_Bool" }
        }
        Ok(bytes) if inner == "float" || inner == "double" => TypeKind::Float { bytes },
        _ => TypeKind::Incomplete,
    }
}

/// Why functions of a type cannot be called as C functions are; None: they can.
fn foreign(ty: clang::Type) -> Option<String> {
    use clang::CallingConvention as C;
    match ty.get_calling_convention() {
        None | Some(C::Cdecl) => None,
        Some(C::SysV64) if cfg!(target_arch = "x86_64") => None,
        Some(other) => Some(format!("{other:?}")),
    }
}

/// An array as a parameter: a pointer to its first element.
fn decayed(ty: Type) -> Type {
    match ty.kind {
        TypeKind::Array { of, .. } => {
            let constant = of.spelling.starts_with("const ");
            let spelling = declare_pointer(&of.spelling);
            Type { spelling, kind: TypeKind::Pointer { to: of, constant }, handle: None }
        }
        _ => ty,
    }
}

/// The spelling of a pointer to a type: `int (*)[4]` for `int[4]`, `void (*)(int)` for `void (int)`.
fn declare_pointer(to: &str) -> String {
    let (before, after) = declarator::split(to);
    match after.is_empty() {
        true if before.ends_with('*') => format!("{before}*"),
        true => format!("{before} *"),
        false if before.ends_with('*') => format!("{before}*{after}"),
        false => format!("{} (*){}", before.trim_end(), after.trim_start()),
    }
}

fn unqualified(spelling: &str) -> &str {
    spelling.trim_start_matches("const ").trim_start_matches("volatile ")
}

/// The symbol of a function whose declaration gives it another one than its name (`__asm__("name_v2")`).
fn is_constant(ty: clang::Type) -> bool {
    ty.is_const_qualified() || ty.get_element_type().is_some_and(is_constant)
}

fn symbol(entity: Entity, name: &str) -> Option<String> {
    let label = entity.get_children().into_iter().find(|child| child.get_kind() == EntityKind::AsmLabelAttr)?;
    label.get_name().filter(|symbol| symbol != name && !symbol.is_empty())
}

fn file_of(entity: Entity) -> Option<PathBuf> {
    entity.get_location()?.get_file_location().file.map(|f| f.get_path())
}

/// The parameter declarations directly under an entity (a function, or what has a function pointer's type).
fn parameters_of(entity: Entity) -> Vec<Entity> {
    let mut found = Vec::new();
    entity.visit_children(|child, _| {
        if child.get_kind() == EntityKind::ParmDecl {
            found.push(child);
        }
        EntityVisitResult::Continue
    });
    found
}
