//! What rules look at.

use crate::model::{Type, TypeKind};
use crate::tools::init::evidence::Evidence;

/// A function as the rules see it.
pub struct Subject<'a> {
    pub function: &'a str,
    /// Parameters by the names that the specification gives them.
    pub names: &'a [String],
    pub types: Vec<&'a Type>,
    pub result: &'a Type,
    pub evidence: &'a [Evidence],
    /// True if the API hands out memory of devices as `void *`.
    pub device_memory: bool,
    pub handle: &'a dyn Fn(&Type) -> bool,
    /// True if a function of the API ends objects of this type.
    pub ended: &'a dyn Fn(&Type) -> bool,
    /// True if a value holds pointers that are no handles.
    pub translated: &'a dyn Fn(&Type) -> bool,
}

pub(super) fn bytes_of(ty: &Type) -> Option<usize> {
    match ty.kind {
        TypeKind::Int { bytes, .. } | TypeKind::Float { bytes } => Some(bytes),
        _ => None,
    }
}
