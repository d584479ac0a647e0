//! Chains, as the runtimes are told of them.

use super::types;
use crate::model::Chain;
use proc_macro2::{Literal, TokenStream};
use quote::quote;

/// The value of the runtime's type.
pub fn shape(chain: &Chain) -> TokenStream {
    let [at, width, next] = [chain.kind.0, chain.kind.1, chain.next].map(types::size);
    let links = chain.links.iter().map(|link| {
        let (kind, size) = (Literal::u64_unsuffixed(link.kind), types::size(link.size));
        quote!((#kind, #size))
    });
    let refuse = chain.refuse;
    quote!(&support::Chain { kind: (#at, #width), next: #next, links: &[#(#links),*], refuse: #refuse })
}
