//! `kernels!` on the device: entry points with plain names. A slice arrives as an address and a length, because a struct is
//! passed in one way by AMD's ABI and in another by NVIDIA's.

#[macro_export]
macro_rules! kernels {
    ($(
        $(#[doc = $doc:expr])*
        #[launch(threads = $threads:expr $(, shared = $shared:expr)?)]
        fn $name:ident($($params:tt)*) $body:block
    )*) => {$(
        $crate::entry!($name [] [] ($($params)*) $body);
    )*};
}

/// Takes one parameter after the other. `len` is another name in every step: it is the macro's own each time.
#[doc(hidden)]
#[macro_export]
macro_rules! entry {
    ($name:ident [$($taken:tt)*] [$($made:tt)*] ($arg:ident: &[$ty:ty] $(, $($rest:tt)*)?) $body:block) => {
        $crate::entry!($name
            [$($taken)* $arg: *const $ty, len: u32,]
            [$($made)* let $arg = unsafe { $crate::View::new($arg, len) };]
            ($($($rest)*)?) $body);
    };
    ($name:ident [$($taken:tt)*] [$($made:tt)*] ($arg:ident: &mut [$ty:ty] $(, $($rest:tt)*)?) $body:block) => {
        $crate::entry!($name
            [$($taken)* $arg: *mut $ty, len: u32,]
            [$($made)* let $arg = unsafe { $crate::ViewMut::new($arg, len) };]
            ($($($rest)*)?) $body);
    };
    ($name:ident [$($taken:tt)*] [$($made:tt)*] ($arg:ident: $ty:ty $(, $($rest:tt)*)?) $body:block) => {
        $crate::entry!($name [$($taken)* $arg: $ty,] [$($made)*] ($($($rest)*)?) $body);
    };
    ($name:ident [$($taken:tt)*] [$($made:tt)*] () $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "gpu-kernel" fn $name($($taken)*) {
            $($made)*
            $body
        }
    };
}
