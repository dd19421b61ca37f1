//! Other people's code that the chat page loads when it needs it: KaTeX typesets formulas, pdf.js reads PDF files.
//!
//! The files come from npm by `scripts/web/vendor.mjs`, with their licences beside them. They add 1.8 MB to the binary,
//! half of it pdf.js' CMaps, without which many Chinese, Japanese and Korean files have no text. Left out are its image
//! decoders, which text does not need.

use super::Storage::{self, Versioned, VersionedGzip};
use super::{Asset, SCRIPT, SHEET};

const FONT: &str = "font/woff2";
const BINARY: &str = "application/octet-stream";

macro_rules! assets {
    ($($path:literal => $type:expr, $storage:expr, $file:literal;)*) => {
        #[cfg(test)]
        pub const PATHS: &[&str] = &[$($path),*];

        pub fn asset(path: &str) -> Option<Asset> {
            let (content_type, storage, bytes): (_, Storage, &[u8]) = match path {
                $($path => ($type, $storage, include_bytes!($file)),)*
                _ => return None,
            };
            Some(Asset { content_type, bytes, storage })
        }
    };
}

assets! {
    "assets/katex-0.19.1/katex.min.js" => SCRIPT, VersionedGzip, "vendor/katex/katex.min.js.gz";
    "assets/katex-0.19.1/katex.min.css" => SHEET, VersionedGzip, "vendor/katex/katex.min.css.gz";
    "assets/pdfjs-5.6.205/pdf.min.mjs" => SCRIPT, VersionedGzip, "vendor/pdfjs/pdf.min.mjs.gz";
    "assets/pdfjs-5.6.205/pdf.worker.min.mjs" => SCRIPT, VersionedGzip, "vendor/pdfjs/pdf.worker.min.mjs.gz";
    "assets/pdfjs-5.6.205/cmaps.bin" => BINARY, VersionedGzip, "vendor/pdfjs/cmaps.bin.gz";
    "assets/katex-0.19.1/fonts/KaTeX_AMS-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_AMS-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Caligraphic-Bold.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Caligraphic-Bold.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Caligraphic-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Caligraphic-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Fraktur-Bold.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Fraktur-Bold.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Fraktur-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Fraktur-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Main-Bold.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Main-Bold.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Main-BoldItalic.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Main-BoldItalic.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Main-Italic.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Main-Italic.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Main-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Main-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Math-BoldItalic.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Math-BoldItalic.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Math-Italic.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Math-Italic.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_SansSerif-Bold.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_SansSerif-Bold.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_SansSerif-Italic.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_SansSerif-Italic.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_SansSerif-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_SansSerif-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Script-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Script-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Size1-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Size1-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Size2-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Size2-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Size3-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Size3-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Size4-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Size4-Regular.woff2";
    "assets/katex-0.19.1/fonts/KaTeX_Typewriter-Regular.woff2" => FONT, Versioned, "vendor/katex/fonts/KaTeX_Typewriter-Regular.woff2";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every font that KaTeX's sheet names as WOFF2 is here, and the files are the versions that their addresses say.
    #[test]
    fn whole_and_of_their_versions() {
        let text = |path: &str| {
            let bytes = super::super::unpack(asset(path).expect("listed").bytes).expect("gzip");
            String::from_utf8(bytes.to_vec()).expect("text")
        };
        let sheet = text("assets/katex-0.19.1/katex.min.css");
        let fonts = sheet.split("url(").skip(1).filter_map(|rest| rest.split(')').next());
        let fonts: Vec<&str> = fonts.filter(|name| name.ends_with(".woff2")).collect();
        assert_eq!(fonts.len(), 20);
        for font in fonts {
            assert!(asset(&format!("assets/katex-0.19.1/{font}")).is_some(), "{font}");
        }
        assert!(text("assets/katex-0.19.1/katex.min.js").contains("0.19.1"));
        assert!(text("assets/pdfjs-5.6.205/pdf.min.mjs").contains("5.6.205"));
        assert!(text("assets/pdfjs-5.6.205/pdf.worker.min.mjs").contains("5.6.205"));
        // Every CMap lies inside the file that holds them all.
        let maps = super::super::unpack(asset("assets/pdfjs-5.6.205/cmaps.bin").expect("listed").bytes).expect("gzip");
        let end = maps.iter().position(|&byte| byte == b'\n').expect("a line with the places");
        let places: std::collections::BTreeMap<String, (usize, usize)> =
            serde_json::from_slice(&maps[..end]).expect("places");
        assert!(places.len() > 150 && places.contains_key("UniGB-UCS2-H") && places.contains_key("Adobe-Japan1-UCS2"));
        assert_eq!(places.values().map(|(at, n_bytes)| at + n_bytes).max(), Some(maps.len() - end - 1));
    }
}
