::kernel::Objects { name: "kernels", all: &[
    ::kernel::Object { chip: "gfx9-generic", code: include_bytes!("gfx9-generic.hsaco.deflate") },
    ::kernel::Object { chip: "gfx908", code: include_bytes!("gfx908.hsaco.deflate") },
    ::kernel::Object { chip: "gfx90a", code: include_bytes!("gfx90a.hsaco.deflate") },
    ::kernel::Object { chip: "gfx9-4-generic", code: include_bytes!("gfx9-4-generic.hsaco.deflate") },
    ::kernel::Object { chip: "gfx10-1-generic", code: include_bytes!("gfx10-1-generic.hsaco.deflate") },
    ::kernel::Object { chip: "gfx10-3-generic", code: include_bytes!("gfx10-3-generic.hsaco.deflate") },
    ::kernel::Object { chip: "gfx11-generic", code: include_bytes!("gfx11-generic.hsaco.deflate") },
    ::kernel::Object { chip: "gfx12-generic", code: include_bytes!("gfx12-generic.hsaco.deflate") },
    ::kernel::Object { chip: "gfx1100", code: include_bytes!("gfx1100.hsaco.deflate") },
    ::kernel::Object { chip: "sm_70", code: include_bytes!("sm_70.ptx.deflate") },
    ::kernel::Object { chip: "sm_80", code: include_bytes!("sm_80.ptx.deflate") },
] }
