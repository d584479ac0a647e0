//! Tests of arenas.

use super::*;

#[test]
fn both_sides_see_equal_bytes() {
    let ours = Arena::create(1 << 30).unwrap();
    let file = rustix::io::dup(ours.file().unwrap()).unwrap();
    // In one process the guest's address is taken: the second mapping must go elsewhere.
    let theirs = Arena::open(file, ours.address(), 1 << 30).unwrap();
    assert!(ours.same_address() && !theirs.same_address());
    let (a, b) = (ours.pointer(4096, 4).unwrap(), theirs.pointer(4096, 4).unwrap());
    // SAFETY: both pointers are inside their mappings; one thread.
    unsafe {
        a.cast::<u32>().write(0xdead_beef);
        assert_eq!(b.cast::<u32>().read(), 0xdead_beef);
    }
    ours.punch(4096, 4096).unwrap();
    // SAFETY: both pointers are inside their mappings; one thread. Volatile, because the
    // compiler cannot know that the system call changed memory that it has already read.
    assert_eq!(unsafe { b.cast::<u32>().read_volatile() }, 0);
}

/// A file of the program under the number of the arena's file, with this content.
fn program_file(number: BorrowedFd, content: &[u8]) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let file = rustix::fs::memfd_create("program", MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&file, content, 0).unwrap();
    // SAFETY: as a program does it that reuses a number: its owner closes it later, as this file.
    assert!(unsafe { libc::dup2(file.as_raw_fd(), number.as_raw_fd()) } >= 0);
    file
}

#[test]
fn memory_is_returned_without_the_number_of_its_file() {
    let ours = Arena::create(64 << 20).unwrap();
    let kept = rustix::io::dup(ours.file().unwrap()).unwrap();
    let program = program_file(ours.file().unwrap(), &[7; 1 << 20]);
    ours.write(4096, &[1; 8192]).unwrap();
    ours.give_back(4096, 4096).unwrap();
    let mut content = vec![0; 1 << 20];
    rustix::io::pread(&program, &mut content, 0).unwrap();
    assert!(content.iter().all(|byte| *byte == 7), "a hole was punched into the program's file");
    assert_eq!(rustix::fs::fstat(&kept).unwrap().st_blocks, 8, "one page of 512-byte blocks is left");
    let mut read = Vec::new();
    ours.read(4096, 4097, &mut read).unwrap();
    assert!(read[..4096].iter().all(|byte| *byte == 0) && read[4096] == 1);
}

#[test]
fn locked_memory_is_returned() {
    let (ours, file) = Arena::create_apart(1 << 20).unwrap();
    assert!(ours.file().is_none());
    ours.write(4096, &[1; 8192]).unwrap();
    // SAFETY: locking changes no content. A limit may refuse it, and the range is then returned as any other.
    let _ = unsafe { rustix::mm::mlock(ours.pointer(4096, 8192).unwrap().cast(), 8192) };
    ours.punch(4096, 8192).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
}

#[test]
fn range_is_split_into_chunks_and_edges() {
    const C: u64 = CHUNK_BYTES;
    assert_eq!(split_chunks(C, 2 * C), (C..3 * C, [C..C, 3 * C..3 * C]));
    assert_eq!(split_chunks(C - 4096, C + 8192), (C..2 * C, [C - 4096..C, 2 * C..2 * C + 4096]));
    let (chunks, edges) = split_chunks(4096, 8192);
    assert!(chunks.is_empty());
    assert_eq!(edges.iter().map(|edge| edge.end - edge.start).sum::<u64>(), 8192);
}

#[test]
fn hostile_files_are_refused() {
    let plain = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&plain, 8192).unwrap();
    let again = || rustix::io::dup(&plain).unwrap();
    assert_eq!(Arena::open(again(), 0, 8192).err(), Some(ArenaError::NotSealed));
    rustix::fs::fcntl_add_seals(&plain, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let wrong = ArenaError::WrongSize { found: 8192, stated: 12288 };
    assert_eq!(Arena::open(again(), 0, 12288).err(), Some(wrong));
    assert_eq!(Arena::open(again(), 0, 100).err(), Some(ArenaError::Size(100)));
    assert_eq!(Arena::open(again(), 0, 1 << 41).err(), Some(ArenaError::Size(1 << 41)));
    assert!(Arena::open(again(), 0x1000, 8192).is_ok_and(|a| !a.same_address()));
    // A system without huge pages has none to refuse.
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = rustix::fs::memfd_create("x", flags) {
        rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert_eq!(Arena::open(huge, 0, 2 << 20).err(), Some(ArenaError::HugePages));
    }
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(Arena::open(null.into(), 0, 8192).err(), Some(ArenaError::NotSealed));
}

#[test]
fn heap_replaces_a_part() {
    let arena = Arena::create(1 << 20).unwrap();
    let heap = |seals| {
        let file = rustix::fs::memfd_create("heap", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    let file = heap(SealFlags::SHRINK | SealFlags::GROW);
    rustix::io::pwrite(&file, b"here", 4096).unwrap();
    arena.write(8192, b"gone").unwrap();
    arena.lay_over(4096, 8192, file.as_fd()).unwrap();
    let mut read = Vec::new();
    arena.read(8192, 4, &mut read).unwrap();
    assert_eq!(read, b"here");
    for (offset, length) in [(0, 8192), (4097, 8192), (4096, 4096), (4096, 0), (1 << 20, 8192), (u64::MAX, 8192)] {
        assert!(arena.lay_over(offset, length, file.as_fd()).is_err(), "{offset} {length}");
    }
    assert_eq!(arena.lay_over(4096, 8192, heap(SealFlags::GROW).as_fd()), Err(ArenaError::NotSealed));
    assert!(Arena::mirror(1 << 20).unwrap().lay_over(4096, 8192, file.as_fd()).is_err());
}

#[test]
fn ranges_are_checked() {
    let arena = Arena::mirror(8192).unwrap();
    assert!(arena.pointer(8192, 0).is_ok());
    for (offset, length) in [(8192, 1), (0, 8193), (u64::MAX, 1), (1, usize::MAX)] {
        assert!(arena.pointer(offset, length).is_err(), "{offset} {length}");
    }
    arena.write(8188, b"abcd").unwrap();
    let mut read = vec![1];
    arena.read(8189, 3, &mut read).unwrap();
    assert_eq!(read, b"\x01bcd");
    assert!(arena.write(8189, b"abcd").is_err() && arena.read(8189, 4, &mut read).is_err());
    let start = arena.pointer(0, 1).unwrap();
    assert_eq!(arena.offset_of(start), Some(0));
    assert_eq!(arena.offset_of(start.wrapping_add(8192)), None);
    assert_eq!(arena.offset_of(start.wrapping_sub(1)), None);
}
