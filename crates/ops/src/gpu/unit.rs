//! A kernel is declared once, next to the op that launches it: its file, the file's defines, its entry points and their
//! arguments ([`kernels!`]). The program that is compiled, the handles that are launched and the list of variants that
//! the compile-matrix scripts build all come from that declaration.

use gpu::{Args, Kernel, Module, Program};

use super::formats::FormatSet;

/// A file under `kernels/` and what it is compiled with.
pub(crate) struct KernelFile {
    /// Without `.hip`.
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    /// Whether its kernels may start while the work before them still runs.
    pub(crate) overlaps: bool,
    pub(crate) defines: &'static [Define],
}

pub(crate) struct Define {
    pub(crate) name: &'static str,
    pub(crate) values: DefineValues,
}

/// The values of a define that are compiled somewhere.
#[derive(Copy, Clone)]
pub(crate) enum DefineValues {
    /// Number of a weight format.
    Formats(FormatSet),
    /// Launch parameters and sizes: these are compiled by the scripts; a device may ask for others.
    Numbers(#[cfg_attr(not(test), expect(dead_code, reason = "read where the variants are listed"))] &'static [u32]),
    /// Defined as 1, or not at all.
    Flag,
}

impl KernelFile {
    /// `values` are those of [`KernelFile::defines`], in order.
    pub(crate) fn program(&self, values: &[u32]) -> Program {
        assert_eq!(values.len(), self.defines.len(), "{}: a value for each define", self.name);
        let program = Program::new(self.name, self.source);
        let program = if self.overlaps { program.overlapping() } else { program };
        self.defines.iter().zip(values).fold(program, |program, (define, value)| match define.values {
            DefineValues::Flag if *value == 0 => program,
            DefineValues::Formats(set) => {
                assert!(set.has(*value), "{}: format {value} is not declared", self.name);
                program.define(define.name, *value)
            }
            _ => program.define(define.name, *value),
        })
    }

    /// Its line in `kernels/variants.txt`.
    #[cfg(test)]
    fn variants(&self) -> Option<String> {
        let define = |define: &Define| {
            let values = match define.values {
                DefineValues::Formats(set) => set.numbers().map(|n| n.to_string()).collect::<Vec<_>>().join(","),
                DefineValues::Numbers(numbers) => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
                DefineValues::Flag => "-,1".to_owned(),
            };
            format!(" {}={values}", define.name)
        };
        let defines: String = self.defines.iter().map(define).collect();
        (!defines.is_empty()).then(|| format!("{}{defines}\n", self.name))
    }
}

/// One kernel, or several that take the same arguments.
pub(crate) trait Entries: Sized {
    fn declare(program: Program, names: &[&str]) -> Program;
    fn pick(module: &Module, names: &[&str]) -> gpu::Result<Self>;
}

impl<A: Args<Key = A>> Entries for Kernel<A> {
    fn declare(program: Program, names: &[&str]) -> Program {
        program.kernel::<A>(names[0])
    }

    fn pick(module: &Module, names: &[&str]) -> gpu::Result<Self> {
        module.kernel::<A>(names[0])
    }
}

impl<A: Args<Key = A>, const N: usize> Entries for [Kernel<A>; N] {
    fn declare(program: Program, names: &[&str]) -> Program {
        names.iter().fold(program, |program, name| program.kernel::<A>(name))
    }

    fn pick(module: &Module, names: &[&str]) -> gpu::Result<Self> {
        let kernels = names.iter().map(|name| module.kernel::<A>(name)).collect::<gpu::Result<Vec<_>>>()?;
        Ok(kernels.try_into().unwrap_or_else(|_| panic!("{N} names for {N} kernels")))
    }
}

/// Declares the kernels of a file: a struct with a handle for each entry point, loaded by `get` with a value for each
/// define.
///
/// ```text
/// kernels! {
///     struct PackKernels in "pack"; defines { FORMAT: DefineValues::Formats(FormatSet::Packed) } {
///         pack: Kernel<Pack<'static>> = ["pack"],
///     }
/// }
/// ```
macro_rules! kernels {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $file:literal $(, $overlapping:ident)?
        $(; defines { $($define:ident: $values:expr),* })? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty = [$($entry:literal),+],)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone)]
        $vis struct $name {
            $($(#[$field_meta])* $vis $field: $type,)+
        }

        impl $name {
            pub(crate) const FILE: $crate::gpu::unit::KernelFile = $crate::gpu::unit::KernelFile {
                name: $file,
                source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $file, ".hip")),
                overlaps: $crate::gpu::unit::overlaps!($($overlapping)?),
                defines: &[
                    $($($crate::gpu::unit::Define { name: stringify!($define), values: $values }),*)?
                ],
            };

            $vis fn get(kernels: &$crate::Kernels, values: &[u32]) -> Result<Self, $crate::Error> {
                use $crate::gpu::unit::Entries;
                kernels.unit(
                    &Self::FILE,
                    values,
                    |program| {
                        $(let program = <$type as Entries>::declare(program, &[$($entry),+]);)+
                        program
                    },
                    |module| Ok(Self { $($field: <$type as Entries>::pick(module, &[$($entry),+])?,)+ }),
                )
            }
        }
    };
}
pub(crate) use kernels;

macro_rules! overlaps {
    () => {
        false
    };
    (overlapping) => {
        true
    };
}
pub(crate) use overlaps;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::files::FILES;

    const HEAD: &str = "\
# What each kernel file is compiled with: FILE NAME=value,value ... (every combination; `-` leaves a name undefined).
# Files that are not here need no defines. Generated from the declarations in crates/ops/src: a test compares them, and
# ROCI_WRITE_GENERATED=1 cargo test -p roci-ops generated_files writes this file anew.
";

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
    }

    #[test]
    fn generated_files() {
        let variants: String = FILES.iter().filter_map(|file| file.variants()).collect();
        let all = [
            ("variants.txt", format!("{HEAD}{variants}")),
            ("formats.h", super::super::formats::header()),
            ("grids.h", super::super::formats::grids_header()),
        ];
        for (name, text) in all {
            let path = folder().join(name);
            if std::env::var("ROCI_WRITE_GENERATED").is_ok_and(|value| value == "1") {
                std::fs::write(&path, &text).unwrap();
            }
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == text, "{name} is not what the declarations say; ROCI_WRITE_GENERATED=1 updates it");
        }
    }

    #[test]
    fn every_kernel_file_is_declared() {
        let declared: BTreeSet<String> = FILES.iter().map(|file| format!("{}.hip", file.name)).collect();
        let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
        let there: BTreeSet<String> = entries.filter_map(|name| name.into_string().ok()).collect();
        let there = there.into_iter().filter(|name| name.ends_with(".hip") && name != "prelude_check.hip");
        assert_eq!(there.collect::<BTreeSet<_>>(), declared);
    }
}
