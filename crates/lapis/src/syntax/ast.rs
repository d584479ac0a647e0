//! A specification as it is written: names unresolved, every node with its place.

use crate::model::{Binary, ResourceKind, Side, Unary};
use crate::syntax::source::Span;

#[derive(Debug, Clone, PartialEq)]
pub struct Name {
    pub text: String,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub value: String,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A line for the C preprocessor.
    Directive {
        kind: Directive,
        span: Span,
    },
    Api {
        name: Text,
        version: Text,
        soname: Text,
        span: Span,
    },
    Import(Text),
    Resource {
        kind: ResourceKind,
        name: Name,
        /// The utility function that names the devices it lies on.
        devices: Option<Name>,
    },
    Policy(Text),
    /// struct, union, enum or typedef, as C text.
    Declaration {
        code: String,
        span: Span,
    },
    DeclareMetadata(TypeName),
    Registry(Name),
    Utility {
        side: Side,
        code: String,
        span: Span,
    },
    UtilityFile {
        side: Side,
        path: Text,
    },
    Type {
        ty: TypeName,
        body: Block,
        span: Span,
    },
    /// `outcome(ty) { fails(...); ... }`: how functions that return it say that they failed.
    Outcome {
        ty: TypeName,
        body: Block,
        span: Span,
    },
    ErrorArgument(Name),
    StatusArgument(Name),
    /// Functions that change nothing.
    Stateless(Vec<Name>),
    /// The utility function that waits for the vendor's library.
    Quiesce(Name),
    /// `stays(f);`
    Stays(Name),
    Contents(Name),
    /// Utility functions that save and restore what belongs to no object.
    SessionState {
        write: Name,
        read: Name,
    },
    Table {
        ty: TypeName,
        name: Name,
        source: Option<TableFrom>,
    },
    Environment {
        name: Text,
        value: Text,
    },
    File {
        path: Text,
        content: Text,
    },
    DropIn {
        soname: Text,
        only_if_missing: bool,
    },
    Program(Text),
    /// `library("...");`
    Library(Text),
    /// `versions_any;`
    VersionsAny,
    /// `versions("...");`
    Versions(Text),
    /// `pass_environment("NAME", ...);`
    PassEnvironment(Vec<Text>),
    Sandbox {
        rules: Vec<SandboxRule>,
        span: Span,
    },
    Function(FunctionItem),
}

/// `from e { ... }` of a `table`.
#[derive(Debug, Clone, PartialEq)]
pub struct TableFrom {
    /// Where the vendor's table is.
    pub address: AstExpr,
    /// The meaning of members that are no functions.
    pub body: Block,
}

/// `read("...", "...");` in a `sandbox` block.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRule {
    pub name: Name,
    pub texts: Vec<Text>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Directive {
    /// `#include`: its functions are the API.
    Include {
        path: String,
        quoted: bool,
    },
    /// `#support`: only its types and macros count.
    Support {
        path: String,
        quoted: bool,
    },
    Define(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct FunctionItem {
    pub overriding: bool,
    pub result: Option<TypeName>,
    /// `table.member` names the table here.
    pub table: Option<Name>,
    pub name: Name,
    pub parameters: Vec<Parameter>,
    pub variadic: bool,
    pub body: Block,
    /// From the return type to the closing parenthesis.
    pub head: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Parameters of a `callback` may be bare names.
    pub ty: Option<TypeName>,
    pub name: Name,
}

/// A C type as written: base, pointers, and perhaps an array or function declarator.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeName {
    /// `unsigned int`, `struct foo`, `cl_mem`; without qualifiers.
    pub base: String,
    pub constant: bool,
    /// For every `*`, outermost last: whether the pointer itself is const.
    pub pointers: Vec<bool>,
    /// `x[3]`: a parameter of this type is a pointer.
    pub array: bool,
    /// `void (*f)(int)`: only the header knows the details.
    pub function: bool,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Block {
    pub statements: Vec<Statement>,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    Descriptor(Descriptor),
    If {
        condition: AstExpr,
        then: Block,
        otherwise: Option<Block>,
        span: Span,
    },
    Contextual {
        ty: TypeName,
        name: Name,
        value: AstExpr,
        span: Span,
    },
    /// `...`: something the author has yet to write.
    Ellipsis(Span),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Descriptor {
    pub name: Name,
    /// None: written without parentheses.
    pub arguments: Option<Vec<Argument>>,
    pub body: Option<Block>,
    /// Without the body.
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    Expr(AstExpr),
    Type(TypeName),
    Parameter(Parameter),
}

#[derive(Debug, Clone, PartialEq)]
pub struct AstExpr {
    pub kind: AstExprKind,
    pub span: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AstExprKind {
    Int {
        value: i128,
        unsigned: bool,
        long: bool,
    },
    Float(f64),
    String(String),
    Name(String),
    Call(Name, Vec<AstExpr>),
    Unary(Unary, Box<AstExpr>),
    /// Unary plus: the value as it is.
    Plus(Box<AstExpr>),
    Binary(Binary, Box<AstExpr>, Box<AstExpr>),
    Conditional(Box<AstExpr>, Box<AstExpr>, Box<AstExpr>),
    Cast(TypeName, Box<AstExpr>),
    SizeofType(TypeName),
    SizeofExpr(Box<AstExpr>),
    Dereference(Box<AstExpr>),
    Element(Box<AstExpr>, Box<AstExpr>),
    Member(Box<AstExpr>, Name),
    Arrow(Box<AstExpr>, Name),
    /// A mistake that has been reported.
    Error,
}

impl TypeName {
    /// The type in the usual spelling: `const cl_event *`.
    pub fn spelling(&self) -> String {
        let mut text = String::new();
        if self.constant {
            text += "const ";
        }
        text += &self.base;
        if !self.pointers.is_empty() {
            text.push(' ');
        }
        for constant in &self.pointers {
            text += if *constant { "*const " } else { "*" };
        }
        text.trim_end().to_string()
    }
}
