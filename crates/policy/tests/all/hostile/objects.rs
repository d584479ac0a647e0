//! Objects and their maps.

use super::Cases;
use crate::common::*;
use aviary_policy::Policy;
use object::write::SymbolSection;
use object::{SectionKind, SymbolKind};

pub fn maps(cases: &mut Cases) {
    let nothing = [mov(0, 0), exit()];
    let declared = |maps: &[Definition]| object_of(&nothing, maps);
    cases.object("17 maps", "section `maps`", declared(&[USUAL; 17]));
    for (name, because, map) in [
        ("a huge map", "at most 65536 entries", [1, 8, 8, u32::MAX, 0]),
        ("a map a bit too large", "at most 65536 entries", [1, 8, 8, 65537, 0]),
        ("a key of 1 byte", "4 or 8 bytes", [1, 1, 8, 8, 0]),
        ("a key of 3 bytes", "4 or 8 bytes", [1, 3, 8, 8, 0]),
        ("a key of 16 bytes", "4 or 8 bytes", [1, 16, 8, 8, 0]),
        ("a huge key", "4 or 8 bytes", [1, u32::MAX, 8, 8, 0]),
        ("a value of 7 bytes", "a value has", [1, 8, 7, 8, 0]),
        ("a value of 72 bytes", "a value has", [1, 8, 72, 8, 0]),
        ("a huge value", "a value has", [1, 8, u32::MAX, 8, 0]),
        ("a value and entries whose product overflows", "a value has", [1, 8, 0x8000_0000, 0x8000_0000, 0]),
        ("an unknown type", "no map type", [3, 8, 8, 8, 0]),
        ("another unknown type", "no map type", [u32::MAX, 8, 8, 8, 0]),
        ("unknown flags", "unknown flags", [1, 8, 8, 8, 2]),
        ("all flags", "unknown flags", [1, 8, 8, 8, u32::MAX]),
        ("too much for each tenant", "for each tenant", [1, 8, 64, 65536, 1]),
    ] {
        cases.object(name, because, declared(&[map]));
    }
    cases.object("maps that are too large together", "at most 16777216", declared(&[[1, 8, 64, 65536, 0]; 5]));
    cases.object("many maps of a tenant", "for each tenant", declared(&[[1, 8, 64, 513, 1]; 2]));
    let mut half = Builder::new(&[USUAL]);
    let section = half.object.add_section(vec![], b".data2".to_vec(), SectionKind::Data);
    half.object.append_section_data(section, &[0; 8], 4);
    let other = symbol("other", 0, 8, SymbolKind::Data, SymbolSection::Section(section));
    let other = half.object.add_symbol(other);
    half.function("schedule", &[Word::Plain([0x18, 3, 0, 0, 0, 0, 0, 0]), Word::Plain([0; 8]), mov(0, 0), exit()]);
    half.relocate(0, other, 1);
    cases.object("an address in another section", "neither a map nor a global variable", half.finish());
    for by in [4u8, 19, 21, 40] {
        let mut between = Builder::new(&[USUAL, USUAL]);
        between.function("schedule", &[Map(3, 0), mov(0, 0), exit()]);
        let mut object = between.finish();
        let at = object.windows(4).position(|bytes| bytes == [0x18, 3, 0, 0]).expect("the load");
        object[at + 4] = by;
        cases.object(format!("an address {by} bytes into the maps"), "is between two maps", object);
    }
    let mut twins = Builder::new(&[]);
    let section = twins.map_section;
    for at in [0, 20] {
        twins.object.append_section_data(section, &[0; 20], 4);
        twins.object.add_symbol(symbol("twin", at, 20, SymbolKind::Data, SymbolSection::Section(section)));
    }
    twins.function("schedule", &nothing);
    cases.object("two maps of one name", "two maps have this name", twins.finish());
}

pub fn objects(cases: &mut Cases) {
    let good = object_of(&found(&[load(8, 0, 0, 0), exit()]), &[USUAL]);
    assert!(Policy::from_object(&good).is_ok(), "the object is valid before it is changed");
    let object = "not a usable";
    for part in 0..24 {
        let length = good.len() * part / 24;
        cases.object(format!("cut off after {length} bytes"), object, good[..length].to_vec());
    }
    cases.object("nothing", object, Vec::new());
    cases.object("a text", object, b"int schedule() { return 0; }".to_vec());
    cases.object("too long", "more than the limit of", vec![0x7f; 5 << 20]);
    let patched = |at: usize, bytes: &[u8]| {
        let mut object = good.clone();
        object[at..at + bytes.len()].copy_from_slice(bytes);
        object
    };
    cases.object("for x86-64", "not an unlinked object for eBPF", patched(18, &[62, 0]));
    cases.object("for no machine", "not an unlinked object for eBPF", patched(18, &[0, 0]));
    cases.object("an executable", "not an unlinked object for eBPF", patched(16, &[2, 0]));
    cases.object("a shared library", "not an unlinked object for eBPF", patched(16, &[3, 0]));
    cases.object("32 bits", object, patched(4, &[1]));
    cases.object("big endian", object, patched(5, &[2]));
    cases.object("no magic", object, patched(0, &[0]));
    cases.object("sections outside of the file", object, patched(40, &[0xff; 8]));
    cases.object(
        "sections at the end of memory",
        object,
        patched(40, &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    );
    cases.object("more sections than there are", object, patched(60, &[0xff, 0xff]));
    cases.object("section headers of 1 byte", object, patched(58, &[1, 0]));
    cases.object("names in no section", object, patched(62, &[0xfe, 0xfe]));
    let function = |size: u64, offset: u64| {
        let mut builder = Builder::new(&[]);
        let code = [mov(0, 0), exit()];
        builder.function("other", &code);
        let section = SymbolSection::Section(builder.text);
        builder.object.add_symbol(symbol("schedule", offset, size, SymbolKind::Text, section));
        builder.finish()
    };
    for (size, offset) in [(0, 0), (7, 0), (12, 4), (24, 0), (16, 8), (u64::MAX, 0), (8, u64::MAX), (16, 1 << 60)] {
        cases.object(format!("a function of {size} bytes at {offset}"), object, function(size, offset));
    }
    let mut twice = Builder::new(&[]);
    twice.function("schedule", &[mov(0, 0), exit()]);
    twice.function("schedule", &[mov(0, 1), exit()]);
    cases.object("two functions of one name", "two functions", twice.finish());
    let mut none = Builder::new(&[]);
    none.function("main", &[mov(0, 0), exit()]);
    cases.object("no function", "neither a function", none.finish());
    cases.object("no code", object, object_of(&[], &[]));
    let mut long = vec![mov(0, 0); 4096];
    long.push(exit());
    cases.object("too many instructions", "at most 4096", object_of(&long, &[]));
    let relocated = |change: &dyn Fn(&mut Builder)| {
        let mut builder = Builder::new(&[USUAL]);
        builder.function(
            "schedule",
            &[mov(0, 0), mov(3, 0), Word::Plain([0x18, 3, 0, 0, 0, 0, 0, 0]), Word::Plain([0; 8]), exit()],
        );
        change(&mut builder);
        builder.finish()
    };
    let map_at = |offset: u64, kind: u32| {
        relocated(&|builder| {
            let map = builder.maps[0];
            builder.relocate(offset, map, kind);
        })
    };
    cases.object("an address in a constant", "loads no address", map_at(8, 1));
    cases.object("an address in an exit", "loads no address", map_at(32, 1));
    cases.object("an address askew", "not at an instruction", map_at(17, 1));
    cases.object("an address at the second half", "", map_at(24, 2));
    for kind in [2, 3, 4, 10, 99, 0xffff_ffff] {
        cases.object(format!("a relocation of kind {kind}"), "always_inline", map_at(16, kind));
    }
    cases.object(
        "something undefined",
        "not defined",
        relocated(&|builder| {
            let undefined =
                builder.object.add_symbol(symbol("elsewhere", 0, 0, SymbolKind::Data, SymbolSection::Undefined));
            builder.relocate(16, undefined, 1);
        }),
    );
    cases.object(
        "code as a variable",
        "neither a map nor a global variable",
        relocated(&|builder| {
            let section = SymbolSection::Section(builder.text);
            let code = builder.object.add_symbol(symbol("code", 0, 8, SymbolKind::Data, section));
            builder.relocate(16, code, 1);
        }),
    );
    let bss = |bytes: u64| {
        relocated(&|builder| {
            let section = builder.object.add_section(vec![], b".bss".to_vec(), SectionKind::UninitializedData);
            builder.object.append_section_bss(section, bytes, 8);
            let huge = symbol("huge", 0, 8, SymbolKind::Data, SymbolSection::Section(section));
            let huge = builder.object.add_symbol(huge);
            builder.relocate(16, huge, 1);
        })
    };
    for bytes in [65_537, 1 << 32, 1 << 60] {
        cases.object(format!("{bytes} bytes of variables"), "at most 65536", bss(bytes));
    }
}
