//! The server's request pass: from the message to checked arguments.

use super::Handler;
use crate::generate::chains::shape;
use crate::generate::expression::Context;
use crate::generate::marshal::{self, element_loop, keep, read, remember_end, struct_address, write};
use crate::generate::types;
use crate::lower::*;
use crate::model::*;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

impl Handler<'_> {
    /// Stores a word at the instruction's place: a parameter, or memory in an element.
    pub(super) fn store(&self, instruction: &Instruction, value: TokenStream) -> TokenStream {
        match instruction.at {
            ValueLocation::Argument(i) => {
                let a = types::argument(i);
                let value = types::from_word(value, &self.function.signature.parameters[i].1);
                quote!(#a = #value;)
            }
            ValueLocation::Contextual(i) => {
                let x = format_ident!("x{}", i);
                let value = types::from_word(value, &self.function.contextual[i].ty);
                quote!(#x = #value;)
            }
            _ => write(instruction, value),
        }
    }

    /// Notes length and presence of a pointer parameter.
    pub(super) fn note(&self, at: ValueLocation, length: TokenStream, present: TokenStream) -> TokenStream {
        let ValueLocation::Argument(i) = at else { return quote!() };
        let (n, h) = (format_ident!("n{}", i), format_ident!("h{}", i));
        quote!(#n = #length; #h = #present;)
    }

    /// The data that the server takes out of the request for one value.
    pub(super) fn request(&self, instruction: &Instruction, cx: Context) -> TokenStream {
        match &instruction.operation {
            Operation::Scalar => self.request_scalar(instruction),
            Operation::Null { .. } => self.request_null(instruction),
            Operation::Constant { values } => {
                let store = self.store(instruction, quote!(value));
                let note = self.note(instruction.at, quote!(0), quote!(value != 0));
                quote!({ let value = call.constant(&[#(#values),*])?; #store #note })
            }
            Operation::Struct { fields, sized, .. } => {
                let copy = self.request_raw(instruction);
                let (prelude, address) = self.struct_place(instruction);
                let fields = fields.iter().map(|f| self.request(f, cx));
                let sized = sized.map(|sized| check_size(sized, &address));
                quote!(#copy { #prelude #sized #(#fields)* })
            }
            Operation::Handle(h) => {
                let ty = h.handle as u32;
                let all = h.object.deallocate;
                let get = match &h.object.referring {
                    _ if h.release || all => quote!(call.handle_ending(#ty, #all)?),
                    Some(Referring::Sets { .. }) => quote!(call.handle_exclusive(#ty)?),
                    Some(Referring::Uses { failure }) => {
                        let failure = cx.exact(failure);
                        quote!(call.handle_through(#ty, (#failure) as i64)?)
                    }
                    _ => quote!(call.handle(#ty)?),
                };
                let store = self.store(instruction, quote!(value));
                let note = self.note(instruction.at, quote!(0), quote!(value != 0));
                let used = self.request_used(h, cx);
                quote!({ let value = #get; #used #store #note })
            }
            Operation::Text { .. } => {
                let store = self.store(instruction, quote!(text as usize as u64));
                let note = self.note(instruction.at, quote!(usize::MAX), quote!(!text.is_null()));
                quote!({ let text = call.string()?; #store #note })
            }
            Operation::Bytes(bytes) => self.request_bytes(instruction, bytes, cx),
            Operation::Elements(elements) => self.request_elements(instruction, elements, cx),
            Operation::Callback { kind, once, userdata, keeps, .. } => {
                self.request_callback(instruction, *kind as u32, *once, *userdata, *keeps)
            }
            Operation::Zerocopy { bytes } => {
                let bytes = bytes.as_ref().map_or(quote!(1i128), |e| cx.exact(e));
                let store = self.store(instruction, quote!(pointer as usize as u64));
                let note = self.note(instruction.at, quote!(bytes), quote!(!pointer.is_null()));
                quote!({
                    let bytes = support::count(#bytes, 1).ok_or(Reject::Malformed("size"))?;
                    let pointer = call.zerocopy(bytes)?;
                    #store
                    #note
                })
            }
            Operation::Unmap => {
                let store = self.store(instruction, quote!(value as usize as u64));
                let note = self.note(instruction.at, quote!(0), quote!(!value.is_null()));
                quote!({ let value = call.unmap()?; #store #note })
            }
            Operation::Frees => self.request_freed(instruction),
            Operation::Choice { site, condition, then, otherwise } => {
                let (name, keep) = keep(*site, instruction, cx);
                let value = if site.carried {
                    quote!(call.word()?)
                } else {
                    let condition = cx.condition(condition);
                    quote!((#condition) as u64)
                };
                let then = then.iter().map(|i| self.request(i, cx));
                let otherwise = otherwise.iter().map(|i| self.request(i, cx));
                quote!(let #name = #value; #keep if #name != 0 { #(#then)* } else { #(#otherwise)* })
            }
            Operation::Chain(chain) => {
                let shape = shape(chain);
                let store = self.store(instruction, quote!(first as u64));
                quote!({ let first = call.chain(#shape)?; #store })
            }
            Operation::Userdata
            | Operation::Given { .. }
            | Operation::Within { .. }
            | Operation::Resident { .. }
            | Operation::Mapped { .. }
            | Operation::FunctionPointer { .. }
            | Operation::Table(_)
            | Operation::Nothing => quote!(),
        }
    }

    pub(super) fn request_scalar(&self, instruction: &Instruction) -> TokenStream {
        if instruction.ty.size() > 8 || types::is_struct(&instruction.ty) {
            return self.request_raw(instruction);
        }
        let pointer = |i: usize| {
            let ty = &self.function.signature.parameters[i].1;
            matches!(ty.kind, TypeKind::Pointer { .. } | TypeKind::FunctionPointer(_))
        };
        if !matches!(instruction.at, ValueLocation::Argument(i) if pointer(i)) {
            return self.store(instruction, quote!(call.word()?));
        }
        let store = self.store(instruction, quote!(value));
        let note = self.note(instruction.at, quote!(0), quote!(value != 0));
        quote!({ let value = call.word()?; #store #note })
    }

    /// For any bytes that the guest sent, the vendor's library gets NULL.
    fn request_null(&self, instruction: &Instruction) -> TokenStream {
        match instruction.at {
            ValueLocation::Argument(_) => self.note(instruction.at, quote!(0), quote!(call.word()? != 0)),
            _ => self.store(instruction, quote!(0u64)),
        }
    }

    /// Copies a struct's bytes from the request to its place.
    pub(super) fn request_raw(&self, instruction: &Instruction) -> TokenStream {
        let size = types::size(instruction.ty.size());
        let (prelude, address) = self.struct_place(instruction);
        quote!({
            #prelude
            let raw = call.raw(#size)?;
            std::ptr::copy_nonoverlapping(raw, #address as *mut u8, #size);
        })
    }

    pub(super) fn struct_place(&self, instruction: &Instruction) -> (TokenStream, TokenStream) {
        match instruction.at {
            ValueLocation::Argument(i) => {
                let a = types::argument(i);
                (quote!(let e0 = &raw mut #a as usize;), quote!(e0))
            }
            _ => struct_address(instruction),
        }
    }

    pub(super) fn request_callback(
        &self,
        instruction: &Instruction,
        kind: u32,
        once: bool,
        userdata: Option<usize>,
        keeps: Option<KeptHandle>,
    ) -> TokenStream {
        let trampoline = format_ident!("callback_{}", kind);
        let life = if once { quote!(ClosureLifetime::Once) } else { quote!(ClosureLifetime::Session) };
        let function = quote!(if closure.is_null() { 0u64 } else { #trampoline as *const () as usize as u64 });
        let store = self.store(instruction, function);
        let userdata = userdata.map(|u| {
            let a = types::argument(u);
            quote!(#a = closure as usize;)
        });
        let note = self.note(instruction.at, quote!(0), quote!(!closure.is_null()));
        let keeps = keeps.map(|kept| {
            let (ty, native) = (kept.handle as u32, types::argument(kept.argument));
            match kept.held_by {
                Some((hold, let_go)) => {
                    let (hold, let_go) = (self.object_function(hold), self.object_function(let_go));
                    quote!(call.callback_holds(closure, #ty, #native as u64, #hold, #let_go);)
                }
                None => quote!(call.callback_names(closure, #ty, #native as u64);),
            }
        });
        quote!({ let closure = call.callback(#kind, #life)?; #keeps #store #note #userdata })
    }

    /// A utility function of one object.
    fn object_function(&self, utility: usize) -> TokenStream {
        let name = types::utility_name(&self.model.utility_functions[utility]);
        quote!(std::mem::transmute::<*const (), unsafe extern "C" fn(u64)>(#name as *const ()))
    }

    pub(super) fn request_count(&self, instruction: &Instruction, extent: &Extent, cx: Context) -> TokenStream {
        let stride = types::size(extent.stride);
        let exact = match &extent.count {
            _ if extent.site.carried => quote!(call.word()? as i128),
            Count::Elements(e) => cx.exact(e),
            _ => quote!(1i128),
        };
        let (name, keep) = keep(extent.site, instruction, cx);
        quote!(let #name = support::count(#exact, #stride).ok_or(Reject::Malformed("size"))? as u64; #keep)
    }

    pub(super) fn forced(&self, extent: &Extent, cx: Context) -> Option<TokenStream> {
        extent.forced.is_possible().then(|| cx.when(&extent.forced))
    }

    pub(super) fn request_bytes(&self, instruction: &Instruction, bytes: &Bytes, cx: Context) -> TokenStream {
        if let Mode::Resting = bytes.mode {
            return self.store(instruction, quote!(support::UNWRITTEN));
        }
        let count = self.request_count(instruction, &bytes.extent, cx);
        let (name, _) = keep(bytes.extent.site, instruction, cx);
        let (stride, private) = (types::size(bytes.extent.stride), bytes.private);
        let n = quote!(#name as usize * #stride);
        let get = match &bytes.mode {
            Mode::Copy { input: true, output: true } => quote!(call.buffer_inout(Some(#n))?),
            Mode::Copy { input: false, output: true } if bytes.answer => quote!(call.buffer_answer(Some(#n))?),
            Mode::Copy { input: false, output: true } => quote!(call.buffer_out(Some(#n))?),
            Mode::Copy { .. } if bytes.history > 0 => {
                // The application's own pointer, before the server's takes its place.
                let (history, most) = (super::state::history_name(instruction), types::size(bytes.history));
                let pointer = read(instruction);
                quote!(call.buffer_behind(#history, #most, #pointer as u64, #n)?)
            }
            Mode::Copy { .. } => quote!(call.buffer_in(Some(#n), #private)?),
            Mode::Until { input, output, .. } => quote!(call.buffer_until(Some(#n), #input, #output)?),
            Mode::Bound { .. } => quote!(call.shadow(Some(#n), true, true)?),
            Mode::Shadow { input, .. } => quote!(call.shadow(Some(#n), #input, true)?),
            Mode::ShadowBack { end } => quote!(call.shadow_copy_back(Some(#n), #end)?),
            Mode::Room => quote!(match call.array(Some((#n) as u64))? {
                Some(n) => Buffer { ptr: call.scratch(n), len: n },
                None => Buffer { ptr: std::ptr::null_mut(), len: 0 },
            }),
            Mode::Resting => quote!(),
            Mode::Scratch { resource } => {
                let (address, member) = (read(instruction), place(instruction));
                let resource = resource.map_or(quote!(None), |r| {
                    let r = r as u32;
                    quote!(Some(#r))
                });
                quote!(Buffer { ptr: call.state_scratch(#member, #address as u64, #n, #resource)?, len: #n })
            }
        };
        let output = matches!(bytes.mode, Mode::Copy { output: true, .. });
        let rows = marshal::rows(bytes, cx).filter(|_| output && !bytes.extent.site.carried);
        let rows = rows.map(|rows| quote!(call.output_rows(#rows);));
        let align = types::size(bytes.align);
        let aligned = (bytes.align > 1).then(|| quote!(buffer = call.aligned(buffer, #align)?;));
        let cursor = bytes.cursor.then(|| quote!(call.cursor(buffer.ptr, buffer.len)?;));
        let terminated = match &bytes.extent.count {
            Count::Terminated { .. } => quote! {
                if !buffer.ptr.is_null() {
                    // The vendor's library looks for the end itself: there is always one.
                    let copy = call.scratch(buffer.len + 2 * #stride);
                    std::ptr::copy_nonoverlapping(buffer.ptr, copy, buffer.len);
                    buffer.ptr = copy;
                }
            },
            _ => quote!(),
        };
        let force = self
            .forced(&bytes.extent, cx)
            .map(|condition| quote!(if !present && (#condition) { buffer = call.force(buffer, #n); }));
        let store = self.store(instruction, quote!(buffer.ptr as usize as u64));
        let note = self.note(instruction.at, quote!(buffer.len), quote!(present));
        quote! {
            #count
            {
                let mut buffer = #get;
                let present = !buffer.ptr.is_null();
                #rows
                #terminated
                #force
                #aligned
                #cursor
                #store
                #note
            }
        }
    }

    pub(super) fn request_elements(&self, instruction: &Instruction, elements: &Elements, cx: Context) -> TokenStream {
        let count = self.request_count(instruction, &elements.extent, cx);
        if elements.state().is_some() {
            let request = self.request_state(instruction, elements, cx);
            return quote!(#count #request);
        }
        let (name, _) = keep(elements.extent.site, instruction, cx);
        let stride = types::size(elements.extent.stride);
        let forced = self.forced(&elements.extent, cx).unwrap_or(quote!(false));
        let unwritten = self.mark_unwritten(instruction, elements);
        let copy = elements.kept_twice().then(
            || quote!(std::ptr::copy_nonoverlapping(memory as *const u8, (memory + room) as *mut u8, count * #stride);),
        );
        let fill = if elements.input {
            let inner = elements.element.iter().map(|i| self.request(i, cx.inside(elements)));
            let body =
                element_loop(instruction.at, quote!(memory), quote!(count), elements.extent.stride, quote!(#(#inner)*));
            quote!(if present { #body #copy })
        } else {
            let minted: TokenStream =
                elements.element.iter().map(|i| self.request_minted(i, element_address(i))).collect();
            let minted = (!minted.is_empty())
                .then(|| element_loop(instruction.at, quote!(memory), quote!(count), elements.extent.stride, minted));
            let minted = minted.map(|body| quote!(if present { #body }));
            let content = elements.shows_content().then(|| {
                let raw = quote!(std::ptr::copy_nonoverlapping(call.raw(#stride)?, element as *mut u8, #stride););
                quote!(if present { for element in (memory..).step_by(#stride).take(count) { #raw } })
            });
            quote!(#content #unwritten #minted #copy)
        };
        let store = self.store(instruction, quote!(memory as u64));
        let note = self.note(instruction.at, quote!(count * #stride), quote!(present));
        let copies = if elements.kept_twice() { quote!(2 * room) } else { quote!(room) };
        let request = quote! {
            {
                let present = call.array(Some(#name))?.is_some();
                if present || #forced {
                    let count = #name as usize;
                    // Two more elements than asked for: terminated lists end inside our memory.
                    let room = (count + 2) * #stride;
                    let memory = call.scratch(#copies) as usize;
                    #store
                    #note
                    #fill
                }
            }
        };
        let request = remember_end(cx, request);
        quote!(#count #request)
    }

    /// Takes the id that the guest has chosen for what the vendor's function writes to that address.
    pub(super) fn request_minted(&self, instruction: &Instruction, address: TokenStream) -> TokenStream {
        match &instruction.operation {
            Operation::Handle(h) if h.minted => {
                let ty = h.handle as u32;
                quote!(call.minted(#ty, #address)?;)
            }
            _ => quote!(),
        }
    }

    /// Marks output handles and pointers, so that the reply can tell what the vendor wrote.
    pub(super) fn mark_unwritten(&self, instruction: &Instruction, elements: &Elements) -> TokenStream {
        let stride = elements.extent.stride;
        let marks: TokenStream = elements.element.iter().map(mark).collect();
        if marks.is_empty() {
            return quote!();
        }
        element_loop(instruction.at, quote!(memory), quote!(count), stride, marks)
    }
}

/// Where an output element lies: the name under which the reply finds its id.
pub(super) fn element_address(instruction: &Instruction) -> TokenStream {
    let (_, address) = struct_address(instruction);
    quote!(#address as usize)
}

/// The struct around a member, and the member's offset in it.
fn place(instruction: &Instruction) -> TokenStream {
    match instruction.at {
        ValueLocation::Element { depth, offset } => {
            let (e, offset) = (format_ident!("e{}", depth), types::size(offset));
            quote!(#e, #offset)
        }
        _ => quote!(0usize, 0usize),
    }
}

/// The vendor's function believes the struct: its size is one that our copy has, and nothing lies behind it.
fn check_size(sized: Sized, address: &TokenStream) -> TokenStream {
    let [offset, width, required, total] = [sized.offset, sized.width, sized.required, sized.total].map(types::size);
    quote! {
        let size = support::load(#address, #total, #offset, #width, false);
        if size < #required || size > #total {
            return Err(Reject::Malformed("a struct has a size that no guest library sends"));
        }
        std::ptr::write_bytes((#address + size as usize) as *mut u8, 0, #total - size as usize);
    }
}

fn mark(instruction: &Instruction) -> TokenStream {
    match &instruction.operation {
        Operation::Handle(_)
        | Operation::Text { .. }
        | Operation::Bytes(_)
        | Operation::Elements(_)
        | Operation::Null { .. }
        | Operation::Within { .. }
        | Operation::Resident { .. } => write(instruction, quote!(support::UNWRITTEN)),
        Operation::Struct { fields, .. } => fields.iter().map(mark).collect(),
        Operation::Choice { then, otherwise, .. } => {
            // Whichever way the element goes, only handles and pointers care.
            then.iter().chain(otherwise).map(mark).collect()
        }
        _ => quote!(),
    }
}
