//! Variables that a vendor's library exports. A program has them from the guest library, with the content that they have in
//! the vendor's file: no call reaches them, and a copy in the program itself may be made before the first one.

use crate::header::HeaderVariable;
use crate::model::{ExportedVariable, Type, TypeKind, VariablePiece};
use object::LittleEndian as Endian;
use object::elf::{self, FileHeader64, PT_LOAD, SHT_DYNSYM, STT_OBJECT};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};
use std::collections::BTreeMap;

/// Bytes of the longest variable, and of the longest string that one leads to.
const LONGEST: u64 = 16 << 20;

/// The reason why the guest library cannot have a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum Lack {
    /// the vendor's library is not on this machine, or does not export it
    NotThere,
    /// it holds addresses of functions or of data that are not exported
    Address,
    /// the file is not as a library of this processor is
    File,
}

type Found = Result<ExportedVariable, Lack>;

/// The content of each variable in the vendor's library; `None`: there is no library.
pub fn read(library: Option<&[u8]>, variables: &[&HeaderVariable]) -> Vec<Found> {
    let image = library.map(|library| Image::parse(library).map_err(|_| Lack::File));
    let one = |variable: &&HeaderVariable| match &image {
        None => Err(Lack::NotThere),
        Some(Err(lack)) => Err(*lack),
        Some(Ok(image)) => image.variable(variable, variables),
    };
    variables.iter().map(one).collect()
}

/// The content of each variable in the first of the library's files that has it.
pub fn read_all(library: &[Vec<u8>], variables: &[&HeaderVariable]) -> Vec<Found> {
    let Some((first, rest)) = library.split_first() else { return read(None, variables) };
    let mut found = read(Some(first), variables);
    for file in rest {
        let other = read(Some(file), variables);
        found
            .iter_mut()
            .zip(other)
            .filter(|(known, _)| **known == Err(Lack::NotThere))
            .for_each(|(known, other)| *known = other);
    }
    found
}

/// The C functions that a library exports: not those of C++ and of compilers.
pub fn functions(library: &[u8]) -> Vec<String> {
    let own = |name: &String| {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        plain && !name.starts_with('_') && !name.starts_with("aviary_")
    };
    let mut names = exported_functions(library).unwrap_or_default();
    names.retain(own);
    names
}

fn exported_functions(library: &[u8]) -> object::read::Result<Vec<String>> {
    let header = FileHeader64::<Endian>::parse(library)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, library)?;
    let symbols = sections.symbols(endian, library, SHT_DYNSYM)?;
    let versions = sections.versions(endian, library)?;
    let mut names = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        let function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
        let local = symbol.st_bind() == elf::STB_LOCAL || symbol.is_undefined(endian);
        // Only programs that were linked to an old release look for it.
        let old = versions.as_ref().is_some_and(|table| table.version_index(endian, index).is_hidden());
        if function && !local && !old {
            names.push(String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned());
        }
    }
    Ok(names)
}

/// A library as the dynamic linker would lay it out, its own first byte at address 0.
struct Image<'a> {
    /// Address, bytes of the file, bytes in memory.
    segments: Vec<(u64, &'a [u8], u64)>,
    /// Of each object: address and size.
    objects: BTreeMap<String, (u64, u64)>,
    /// Where addresses are filled in, and with which; `None`: with one that this library does not define.
    addresses: BTreeMap<u64, Option<u64>>,
}

impl<'a> Image<'a> {
    fn parse(library: &'a [u8]) -> object::read::Result<Image<'a>> {
        let header = FileHeader64::<Endian>::parse(library)?;
        let endian = header.endian()?;
        let mut image = Image { segments: Vec::new(), objects: BTreeMap::new(), addresses: BTreeMap::new() };
        for segment in header.program_headers(endian, library)?.iter().filter(|s| s.p_type(endian) == PT_LOAD) {
            let content = segment.data(endian, library).unwrap_or_default();
            image.segments.push((segment.p_vaddr(endian), content, segment.p_memsz(endian)));
        }
        let sections = header.sections(endian, library)?;
        let symbols = sections.symbols(endian, library, SHT_DYNSYM)?;
        for symbol in symbols.iter().filter(|s| s.st_type() == STT_OBJECT && !s.is_undefined(endian)) {
            let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned();
            image.objects.insert(name, (symbol.st_value(endian), symbol.st_size(endian)));
        }
        for section in sections.iter() {
            // Relative ones: the place holds the address already.
            for place in section.relr(endian, library)?.into_iter().flatten() {
                let address = image.bytes(place, 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
                image.addresses.insert(place, address);
            }
            let Some((entries, _)) = section.rela(endian, library)? else { continue };
            for entry in entries {
                let addend = entry.r_addend.get(endian).cast_unsigned();
                let address = match entry.r_type(endian, false) {
                    elf::R_X86_64_RELATIVE | elf::R_AARCH64_RELATIVE => Some(addend),
                    elf::R_X86_64_64 | elf::R_AARCH64_ABS64 => {
                        let symbol = symbols.symbol(object::SymbolIndex(entry.r_sym(endian, false) as usize)).ok();
                        let defined = symbol.filter(|s| !s.is_undefined(endian));
                        defined.map(|s| s.st_value(endian).wrapping_add(addend))
                    }
                    _ => None,
                };
                image.addresses.insert(entry.r_offset.get(endian), address);
            }
        }
        Ok(image)
    }

    /// Content that lies in one segment; zeros beyond what the file has of it.
    fn bytes(&self, address: u64, size: u64) -> Option<Vec<u8>> {
        let end = address.checked_add(size).filter(|_| size <= LONGEST)?;
        let (start, content, _) =
            self.segments.iter().find(|(start, _, room)| address >= *start && end <= start.saturating_add(*room))?;
        let from = usize::try_from(address - start).ok()?;
        let mut bytes: Vec<u8> = content.iter().skip(from).take(usize::try_from(size).ok()?).copied().collect();
        bytes.resize(usize::try_from(size).ok()?, 0);
        Some(bytes)
    }

    /// A string with its zero.
    fn text(&self, address: u64) -> Option<Vec<u8>> {
        let (start, content, _) = self
            .segments
            .iter()
            .find(|(start, content, _)| (*start..start + content.len() as u64).contains(&address))?;
        let rest = content.get(usize::try_from(address - start).ok()?..)?;
        let end = rest.iter().take(LONGEST as usize).position(|byte| *byte == 0)?;
        rest.get(..=end).map(<[u8]>::to_vec)
    }

    fn variable(&self, variable: &HeaderVariable, all: &[&HeaderVariable]) -> Found {
        let (address, size) = *self.objects.get(&variable.name).ok_or(Lack::NotThere)?;
        let content = self.bytes(address, size).filter(|_| size > 0).ok_or(Lack::File)?;
        // A program that has a copy insists on the size.
        let align = 1 << (address | size).trailing_zeros().min(4);
        let mut pieces = Vec::new();
        let mut done = 0;
        for (place, leads_to) in self.addresses.range(address..address + size) {
            let at = place - address;
            let (from, to) = (usize::try_from(done), usize::try_from(at));
            let (Ok(from), Ok(to)) = (from, to) else { return Err(Lack::File) };
            if at < done || at + 8 > size || !at.is_multiple_of(8) || align < 8 {
                return Err(Lack::File);
            }
            pieces.extend(content.get(from..to).filter(|b| !b.is_empty()).map(|b| VariablePiece::Bytes(b.to_vec())));
            pieces.push(self.pointer(&variable.ty, at, leads_to.ok_or(Lack::Address)?, all)?);
            done = at + 8;
        }
        let rest = usize::try_from(done).ok().and_then(|from| content.get(from..)).unwrap_or_default();
        pieces.extend((!rest.is_empty()).then(|| VariablePiece::Bytes(rest.to_vec())));
        Ok(ExportedVariable { name: variable.name.clone(), align, pieces })
    }

    /// The pointer at this offset of a variable, which leads to an address in the library.
    fn pointer(&self, ty: &Type, offset: u64, address: u64, all: &[&HeaderVariable]) -> Result<VariablePiece, Lack> {
        for other in all {
            let Some((start, size)) = self.objects.get(&other.name) else { continue };
            if (*start..start.saturating_add(*size)).contains(&address) {
                return Ok(VariablePiece::Inside(other.name.clone(), address - start));
            }
        }
        let to = usize::try_from(offset).ok().and_then(|offset| pointee_at(ty, offset));
        match to.map(|to| &to.kind) {
            Some(TypeKind::Int { bytes: 1, .. }) => self.text(address).map(VariablePiece::Text).ok_or(Lack::File),
            _ => Err(Lack::Address),
        }
    }
}

/// The type that the pointer there leads to.
fn pointee_at(ty: &Type, offset: usize) -> Option<&Type> {
    match &ty.kind {
        TypeKind::Pointer { to, .. } if offset == 0 => Some(to),
        TypeKind::Array { of, .. } => pointee_at(of, offset.checked_rem(of.size())?),
        TypeKind::Struct(s) if !s.union => {
            let field = s.fields.iter().find(|f| (f.offset..f.offset + f.ty.size()).contains(&offset))?;
            pointee_at(&field.ty, offset - field.offset)
        }
        _ => None,
    }
}

/// Leaves out variables that lead into one that is left out.
pub fn drop_dangling(found: &mut [Found]) {
    loop {
        let there: Vec<String> = found.iter().flatten().map(|v| v.name.clone()).collect();
        let dangles = |v: &ExportedVariable| {
            v.pieces.iter().any(|piece| matches!(piece, VariablePiece::Inside(other, _) if !there.contains(other)))
        };
        let Some(one) = found.iter_mut().find(|one| one.as_ref().is_ok_and(dangles)) else { return };
        *one = Err(Lack::Address);
    }
}

/// Their definitions in the guest library.
pub fn definitions(variables: &[ExportedVariable]) -> TokenStream {
    let ident = |name: &str| format_ident!("exported_{}", name);
    let one = |variable: &ExportedVariable| {
        let (name, symbol, ty) = (ident(&variable.name), &variable.name, format_ident!("Exported_{}", variable.name));
        let align = Literal::u64_unsuffixed(variable.align);
        let fields: Vec<_> = (0..variable.pieces.len()).map(|i| format_ident!("piece{}", i)).collect();
        let types = variable.pieces.iter().map(|piece| match piece {
            VariablePiece::Bytes(bytes) => {
                let size = Literal::usize_unsuffixed(bytes.len());
                quote!([u8; #size])
            }
            VariablePiece::Text(_) | VariablePiece::Inside(..) => quote!(*const u8),
        });
        let values = variable.pieces.iter().map(|piece| match piece {
            VariablePiece::Bytes(bytes) => {
                let bytes = Literal::byte_string(bytes);
                quote!(*#bytes)
            }
            VariablePiece::Text(text) => {
                let text = Literal::byte_string(text);
                quote!(#text.as_ptr())
            }
            VariablePiece::Inside(other, offset) => {
                let (other, offset) = (ident(other), Literal::u64_unsuffixed(*offset));
                quote!((&raw const #other).cast::<u8>().wrapping_add(#offset))
            }
        });
        quote! {
            #[repr(C, align(#align))]
            pub struct #ty { #(#fields: #types),* }
            #[unsafe(export_name = #symbol)]
            pub static mut #name: #ty = #ty { #(#fields: #values),* };
        }
    };
    let all = variables.iter().map(one);
    quote!(#(#all)*)
}

#[cfg(test)]
#[path = "exported_tests.rs"]
mod tests;
