//! Variables that a vendor's library exports.

/// A variable and its content.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportedVariable {
    pub name: String,
    pub align: u64,
    pub pieces: Vec<VariablePiece>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum VariablePiece {
    Bytes(Vec<u8>),
    /// The address of these bytes.
    Text(Vec<u8>),
    /// The address of a byte of another variable, by its name.
    Inside(String, u64),
}
