//! No address of one process reaches the other unless the specification says what it is there.

use aviary_lapis::lower::{self, Instruction, Operation};
use aviary_lapis::model::{Kind, Number, Plan, Rule};
use aviary_lapis::{Options, generate, load};
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Each function of the specification leaks a pointer in another way.
#[test]
fn every_way_to_leak_a_pointer_is_a_mistake() {
    let mistakes = load(&path("pointers.lapis"), &Options::default()).expect_err("it leaks");
    let text = mistakes
        .to_string()
        .replace(&format!("{}/", path("").display()), "")
        .replace(&format!("{}", path("").display()), "");
    insta::assert_snapshot!(text);
    let header = std::fs::read_to_string(path("pointers.h")).unwrap();
    let functions =
        header.lines().filter_map(|l| l.split_once('(')).filter_map(|(head, _)| head.rsplit([' ', '*']).next());
    for name in functions.filter(|n| n.starts_with("pt_") && *n != "pt_end") {
        assert!(points_into(&text, name), "{name} passes");
    }
}

/// True where a message points into the lines of that function.
fn points_into(text: &str, name: &str) -> bool {
    let specification = std::fs::read_to_string(path("pointers.lapis")).unwrap();
    let lines: Vec<&str> = specification.lines().collect();
    let Some(first) = lines.iter().position(|l| l.starts_with(&format!("{name}("))) else { return false };
    let ends = |n: &usize| lines[*n].ends_with('}') && (*n == first || !lines[*n].starts_with(' '));
    let last = (first..lines.len()).find(ends).unwrap_or(first);
    (first..=last).any(|n| text.contains(&format!("pointers.lapis:{}:", n + 1)))
}

/// The same functions, described.
#[test]
fn pointers_that_are_told_are_carried_as_told() {
    let loaded = load(&path("pointers-told.lapis"), &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let program = lower::lower(&loaded.model);
    for (function, lowered) in loaded.model.functions.iter().zip(&program.functions) {
        let plans = function.arguments.iter().chain([&function.result]).flat_map(all_plans);
        for plan in plans {
            let told = matches!(plan.kind, Kind::Number(Number::Token | Number::DeviceAddress));
            let plain = matches!(plan.kind, Kind::Scalar | Kind::Number(_) | Kind::Unknown);
            assert!(told || !plain || plan.ty.pointers().is_empty(), "{}: {:?}", function.name, plan.kind);
        }
        let told = function.name.as_str();
        let pointers = lowered.arguments.iter().chain([&lowered.result]).filter(|i| carries_pointer(i)).count();
        let expected = matches!(told, "pt_opaque" | "pt_opaque_struct" | "pt_element" | "pt_result");
        assert_eq!(pointers != 0, expected, "{told}: {pointers} pointers cross as they are");
    }
}

/// The server's `present` tells what the application passed, for every kind of pointer.
#[test]
fn the_server_knows_which_pointers_are_present() {
    let loaded = load(&path("pointers-told.lapis"), &Options::default()).unwrap_or_else(|d| panic!("{d}"));
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 1);
    for (id, function) in loaded.model.functions.iter().enumerate() {
        let start = sources.server.find(&format!("fn handle_{id}(")).expect("a handler");
        let body = &sources.server[start..];
        let body = &body[..body[1..].find("unsafe fn handle_").map_or(body.len(), |end| end + 1)];
        for (n, (name, ty)) in function.signature.parameters.iter().enumerate() {
            let pointer = ty.pointee().is_some() || !ty.pointers().is_empty() && ty.size() == 8;
            if pointer && function.support == aviary_lapis::model::Support::Remote {
                assert!(
                    body.contains(&format!(" h{n} = ")) && body.matches(&format!("h{n} = ")).count() > 1,
                    "{}: {name}\n{body}",
                    function.name
                );
            }
        }
    }
}

fn all_plans(rule: &Rule) -> Vec<&Plan> {
    match rule {
        Rule::If { then, otherwise, .. } => [all_plans(then), all_plans(otherwise)].concat(),
        Rule::Plan(plan) => {
            let mut all = vec![plan.as_ref()];
            match &plan.kind {
                Kind::Buffer(buffer) => all.extend(all_plans(&buffer.element)),
                Kind::Struct { fields, .. } => fields.iter().for_each(|(_, rule)| all.extend(all_plans(rule))),
                _ => {}
            }
            all
        }
    }
}

fn carries_pointer(instruction: &Instruction) -> bool {
    match &instruction.operation {
        Operation::Scalar => !instruction.ty.pointers().is_empty(),
        Operation::Bytes(_) => instruction.ty.pointee().is_some_and(|to| !to.pointers().is_empty()),
        Operation::Elements(e) => e.element.iter().any(carries_pointer),
        Operation::Struct { fields, .. } => fields.iter().any(carries_pointer),
        _ => false,
    }
}
