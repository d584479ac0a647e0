//! C types, as far as marshalling needs them.

/// A C type as far as marshalling needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Type {
    pub kind: TypeKind,
    /// As written in the header (`cl_mem`, `const char *`).
    pub spelling: String,
    /// Index into [`super::Model::handle_types`] if values of this type are handles.
    pub handle: Option<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TypeKind {
    Void,
    Int {
        bytes: usize,
        signed: bool,
    },
    Float {
        bytes: usize,
    },
    /// `constant`: the pointee is const.
    Pointer {
        to: Box<Type>,
        constant: bool,
    },
    FunctionPointer(Box<Signature>),
    Struct(Struct),
    Array {
        of: Box<Type>,
        count: usize,
    },
    /// An incomplete struct, seen only behind pointers.
    Incomplete,
}

/// A complete struct or union; anonymous members are flattened into their parent.
#[derive(Debug, Clone, PartialEq)]
pub struct Struct {
    pub name: String,
    pub size: usize,
    pub align: usize,
    pub union: bool,
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub name: String,
    /// Offset in bytes.
    pub offset: usize,
    pub ty: Type,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    pub parameters: Vec<(String, Type)>,
    pub result: Type,
    pub variadic: bool,
    /// The calling convention, where it is not C's: no generated code can make such a call.
    pub foreign: Option<String>,
}

impl Signature {
    /// True if Rust passes all of its values as C does: numbers of up to eight bytes and addresses.
    pub fn is_plain(&self) -> bool {
        self.parameters.iter().all(|(_, ty)| ty.is_plain()) && self.result.is_plain()
    }
}

impl Type {
    /// True if values are numbers of up to eight bytes or addresses, or there are none.
    pub fn is_plain(&self) -> bool {
        !matches!(self.kind, TypeKind::Struct(_) | TypeKind::Array { .. } | TypeKind::Incomplete)
    }

    /// True if a value can be passed at all: all that is in it is known.
    pub fn is_value(&self) -> bool {
        !matches!(self.kind, TypeKind::Array { .. }) && self.is_known()
    }

    fn is_known(&self) -> bool {
        match &self.kind {
            TypeKind::Incomplete => false,
            TypeKind::Struct(s) => s.fields.iter().all(|f| f.ty.is_known()),
            TypeKind::Array { of, .. } => of.is_known(),
            _ => true,
        }
    }

    /// The members through which a value of this type leads elsewhere: pointers and functions that are no handles, by
    /// their names from outside in; one unnamed if it is such a pointer itself.
    pub fn pointers(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.find_pointers(String::new(), false, &mut found);
        found
    }

    /// [`Type::pointers`], and the handles as well.
    pub fn translated(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.find_pointers(String::new(), true, &mut found);
        found
    }

    fn find_pointers(&self, path: String, handles: bool, found: &mut Vec<String>) {
        match &self.kind {
            _ if self.handle.is_some() => found.extend(handles.then_some(path)),
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => found.push(path),
            TypeKind::Struct(s) => s.fields.iter().for_each(|f| {
                let dot = if path.is_empty() { "" } else { "." };
                f.ty.find_pointers(format!("{path}{dot}{}", f.name), handles, found);
            }),
            TypeKind::Array { of, .. } => of.find_pointers(path, handles, found),
            _ => {}
        }
    }

    /// Size in bytes of one value (`void` counts as a byte, as in `buffer` of `void *`).
    pub fn size(&self) -> usize {
        match &self.kind {
            TypeKind::Void | TypeKind::Incomplete => 1,
            TypeKind::Int { bytes, .. } | TypeKind::Float { bytes } => *bytes,
            TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_) => 8,
            TypeKind::Struct(s) => s.size,
            TypeKind::Array { of, count } => of.size() * count,
        }
    }

    pub fn pointee(&self) -> Option<&Type> {
        match &self.kind {
            TypeKind::Pointer { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// A struct whose member says how many bytes of it the caller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sized {
    /// Of that member, in bytes.
    pub offset: usize,
    pub width: usize,
    /// The fewest bytes that a caller may have.
    pub required: usize,
    /// All bytes of the struct, as the header has it.
    pub total: usize,
}
