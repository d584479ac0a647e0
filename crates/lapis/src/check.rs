//! Rules that concern more than one descriptor.

use crate::diagnostics::Diagnostic;
use crate::model::Model;

pub fn check(_model: &Model, _diagnostics: &mut Vec<Diagnostic>) {}
