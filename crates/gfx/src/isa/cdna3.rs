//! CDNA3 (gfx940 to gfx942) bit layouts, by the tables of AMD's CDNA3 ISA guide.
//!
//! Scalar codes are turned into RDNA3's numbering on the way: m0 is 124 here and 125 outside, null the other way round. "No scalar address" is
//! 127 here and null outside. Sub-encodings: a literal (255), SDWA (249), DPP (250).

use super::{DecodeError, Decoded, Dpp, Encoding, Family, Sdwa, Table, Words, bits, code, is_set};

const SDWA: u16 = 249;
const DPP: u16 = 250;
const NO_SADDR: u16 = 127;

/// Decodes one instruction; `words` may run past its end.
pub fn decode(words: &[u32]) -> Result<Decoded, DecodeError> {
    let Some(&first) = words.first() else { return Err(DecodeError::Cut { word: 0 }) };
    let reader = Cdna3Reader { words: Words { family: Family::Cdna3, words, first } };
    if first >> 31 == 0 {
        return reader.short_vector();
    }
    match first >> 26 {
        0x30 => reader.scalar_memory(),
        0x34 if first >> 23 == 0x1a7 => reader.packed(),
        0x34 => reader.long_vector(),
        0x36 => reader.lds(),
        0x37 => reader.memory(),
        0x38 => reader.buffer(),
        _ => reader.scalar(),
    }
}

/// A scalar code in RDNA3's numbering.
fn renumber(at: u16) -> u16 {
    match at {
        124 => code::M0,
        125 => code::NULL,
        other => other,
    }
}

struct Cdna3Reader<'a> {
    words: Words<'a>,
}

impl Cdna3Reader<'_> {
    fn dpp(&self, d: &mut Decoded) -> Result<(), DecodeError> {
        let w = self.words.word(1)? as u64;
        d.n_words += 1;
        d.src[0] = code::VGPR + bits(w, 7, 0);
        d.dpp = Some(Dpp::Row {
            ctrl: bits(w, 16, 8),
            row_mask: bits(w, 31, 28) as u8,
            bank_mask: bits(w, 27, 24) as u8,
            bound_ctrl: is_set(w, 19),
            fetch_inactive: false,
        });
        d.neg = (bits(w, 20, 20) | bits(w, 22, 22) << 1) as u8;
        d.abs = (bits(w, 21, 21) | bits(w, 23, 23) << 1) as u8;
        Ok(())
    }

    fn sdwa(&self, d: &mut Decoded) -> Result<(), DecodeError> {
        let w = self.words.word(1)? as u64;
        d.n_words += 1;
        d.src[0] = if is_set(w, 23) { renumber(bits(w, 7, 0)) } else { code::VGPR + bits(w, 7, 0) };
        if d.encoding != Encoding::Vop1 && is_set(w, 31) {
            d.src[1] = renumber(d.src[1] - code::VGPR);
        }
        let mut sdwa = Sdwa {
            dst_sel: 6,
            dst_unused: 0,
            src_sel: [bits(w, 18, 16) as u8, bits(w, 26, 24) as u8],
            src_sext: [is_set(w, 19), is_set(w, 27)],
        };
        if d.encoding == Encoding::Vopc {
            if is_set(w, 15) {
                d.sdst = renumber(bits(w, 14, 8));
            }
        } else {
            sdwa.dst_sel = bits(w, 10, 8) as u8;
            sdwa.dst_unused = bits(w, 12, 11) as u8;
            d.is_clamped = is_set(w, 13);
            d.omod = bits(w, 15, 14) as u8;
        }
        d.neg = (bits(w, 20, 20) | bits(w, 28, 28) << 1) as u8;
        d.abs = (bits(w, 21, 21) | bits(w, 29, 29) << 1) as u8;
        d.sdwa = Some(sdwa);
        Ok(())
    }

    fn short_vector(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.first as u64;
        let src0 = renumber(bits(q, 8, 0));
        let vsrc1 = code::VGPR + bits(q, 16, 9);
        let dst = bits(q, 24, 17);
        let mut d = match self.words.first >> 25 {
            0x3e => {
                let mut d = self.words.start(Encoding::Vopc, bits(q, 24, 17), 1)?;
                d.src = [src0, vsrc1, code::ZERO];
                d.sdst = code::VCC;
                d
            }
            0x3f => {
                let mut d = self.words.start(Encoding::Vop1, bits(q, 16, 9), 1)?;
                d.src[0] = src0;
                d.dst = code::VGPR + dst;
                match d.op {
                    "v_readfirstlane_b32" => d.sdst = renumber(dst),
                    "v_accvgpr_mov_b32" => {
                        d.dst = code::AGPR + dst;
                        d.src[0] = src0 + (code::AGPR - code::VGPR);
                    }
                    _ => {}
                }
                d
            }
            _ => {
                let mut d = self.words.start(Encoding::Vop2, bits(q, 30, 25), 1)?;
                d.dst = code::VGPR + dst;
                d.src = [src0, vsrc1, code::ZERO];
                if d.op.contains("_co_") {
                    d.sdst = code::VCC;
                }
                if takes_carry(d.op) || d.op == "v_cndmask_b32" {
                    d.src[2] = code::VCC;
                }
                if d.op.starts_with("v_fmamk") || d.op.starts_with("v_madmk") {
                    d.src = [src0, code::LITERAL, vsrc1];
                } else if d.op.starts_with("v_fmaak") || d.op.starts_with("v_madak") {
                    d.src = [src0, vsrc1, code::LITERAL];
                }
                d
            }
        };
        d.is_short = true;
        match src0 {
            DPP => self.dpp(&mut d)?,
            SDWA => self.sdwa(&mut d)?,
            _ => self.words.literal(&mut d, 3)?,
        }
        Ok(d)
    }

    fn long_vector(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let number = bits(q, 25, 16);
        let is_sd = Table::of(Family::Cdna3).names.contains_key(&(Encoding::Vop3sd, number));
        let mut d = self.words.start(if is_sd { Encoding::Vop3sd } else { Encoding::Vop3 }, number, 2)?;
        d.dst = code::VGPR + bits(q, 7, 0);
        d.src = [bits(q, 40, 32), bits(q, 49, 41), bits(q, 58, 50)].map(renumber);
        d.omod = bits(q, 60, 59) as u8;
        d.neg = bits(q, 63, 61) as u8;
        d.is_clamped = is_set(q, 15);
        if is_sd {
            d.sdst = renumber(bits(q, 14, 8));
        } else {
            d.abs = bits(q, 10, 8) as u8;
            d.op_sel = bits(q, 14, 11) as u8;
        }
        if number < 256 || matches!(d.op, "v_readlane_b32" | "v_readfirstlane_b32") {
            d.sdst = renumber(bits(q, 7, 0));
        }
        Ok(d)
    }

    fn packed(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Vop3p, bits(q, 22, 16), 2)?;
        d.dst = code::VGPR + bits(q, 7, 0);
        d.src = [bits(q, 40, 32), bits(q, 49, 41), bits(q, 58, 50)].map(renumber);
        const TO_AGPR: u16 = code::AGPR - code::VGPR;
        let shift = |at: &mut u16, is_agpr: bool| {
            if is_agpr && *at >= code::VGPR {
                *at += TO_AGPR;
            }
        };
        match d.op {
            "v_accvgpr_read_b32" => shift(&mut d.src[0], true),
            "v_accvgpr_write_b32" => shift(&mut d.dst, true),
            op if op.starts_with("v_mfma") || op.starts_with("v_smfmac") => {
                shift(&mut d.src[0], is_set(q, 59));
                shift(&mut d.src[1], is_set(q, 60));
                shift(&mut d.src[2], is_set(q, 15));
                shift(&mut d.dst, is_set(q, 15));
                d.cbsz = bits(q, 10, 8) as u8;
                d.abid = bits(q, 14, 11) as u8;
                d.blgp = bits(q, 63, 61) as u8;
                return Ok(d);
            }
            _ => {}
        }
        d.neg = bits(q, 63, 61) as u8;
        d.neg_hi = bits(q, 10, 8) as u8;
        d.op_sel = bits(q, 13, 11) as u8;
        d.op_sel_hi = (bits(q, 60, 59) | bits(q, 14, 14) << 2) as u8;
        d.is_clamped = is_set(q, 15);
        Ok(d)
    }

    fn lds(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Ds, bits(q, 24, 17), 2)?;
        if is_set(q, 16) {
            return Err(DecodeError::Unsupported { op: d.op, word: self.words.first, what: "global data share" });
        }
        let data = if is_set(q, 25) { code::AGPR } else { code::VGPR };
        d.imm = bits(q, 15, 0) as i32;
        d.src = [code::VGPR + bits(q, 39, 32), data + bits(q, 47, 40), data + bits(q, 55, 48)];
        d.dst = data + bits(q, 63, 56);
        d.returns_old = d.op.contains("_rtn_");
        Ok(d)
    }

    fn memory(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let encoding = match bits(q, 15, 14) {
            0 => Encoding::Flat,
            1 => Encoding::Scratch,
            _ => Encoding::Global,
        };
        let mut d = self.words.start(encoding, bits(q, 24, 18), 2)?;
        d.imm = match encoding {
            Encoding::Flat => (self.words.first & 0x1fff) as i32,
            _ => ((self.words.first << 19) as i32) >> 19,
        };
        let data = if is_set(q, 55) { code::AGPR } else { code::VGPR };
        d.src = [code::VGPR + bits(q, 39, 32), data + bits(q, 47, 40), code::ZERO];
        d.dst = data + bits(q, 63, 56);
        let saddr = bits(q, 54, 48);
        d.saddr = if encoding == Encoding::Flat || saddr == NO_SADDR { code::NULL } else { renumber(saddr) };
        d.uses_vaddr = encoding != Encoding::Scratch || is_set(q, 13);
        d.returns_old = is_set(q, 16);
        Ok(d)
    }

    fn buffer(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Mubuf, bits(q, 24, 18), 2)?;
        let data = if is_set(q, 55) { code::AGPR } else { code::VGPR };
        d.imm = bits(q, 11, 0) as i32;
        d.src = [code::VGPR + bits(q, 39, 32), data + bits(q, 47, 40), renumber(bits(q, 63, 56))];
        d.dst = data + bits(q, 47, 40);
        d.saddr = bits(q, 52, 48) << 2;
        d.uses_vaddr = is_set(q, 12);
        d.returns_old = is_set(q, 14);
        let is_plain = !is_set(q, 13) && !is_set(q, 16);
        if !is_plain && !d.op.starts_with("buffer_wb") && !d.op.starts_with("buffer_inv") {
            return Err(DecodeError::Unsupported {
                op: d.op,
                word: self.words.first,
                what: "indexed or LDS buffer access",
            });
        }
        Ok(d)
    }

    fn scalar_memory(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.quad()?;
        let mut d = self.words.start(Encoding::Smem, bits(q, 25, 18), 2)?;
        d.src = [bits(q, 5, 0) << 1, code::NULL, code::ZERO];
        d.sdst = renumber(bits(q, 12, 6));
        let (has_imm, has_soffset) = (is_set(q, 17), is_set(q, 14));
        if has_imm {
            d.imm = ((self.words.word(1)? << 11) as i32) >> 11;
        }
        if has_soffset {
            d.src[1] = renumber(bits(q, 63, 57));
        } else if !has_imm {
            // The older form: the offset field names a register.
            d.src[1] = renumber(bits(q, 38, 32));
        }
        Ok(d)
    }

    fn scalar(&self) -> Result<Decoded, DecodeError> {
        let q = self.words.first as u64;
        let imm = (self.words.first & 0xffff) as i16 as i32;
        let mut d = match self.words.first >> 23 {
            0x17d => {
                let mut d = self.words.start(Encoding::Sop1, bits(q, 15, 8), 1)?;
                d.sdst = renumber(bits(q, 22, 16));
                d.src[0] = renumber(bits(q, 7, 0));
                d
            }
            0x17e => {
                let mut d = self.words.start(Encoding::Sopc, bits(q, 22, 16), 1)?;
                d.src = [renumber(bits(q, 7, 0)), renumber(bits(q, 15, 8)), code::ZERO];
                d
            }
            0x17f => {
                let mut d = self.words.start(Encoding::Sopp, bits(q, 22, 16), 1)?;
                d.imm = imm;
                d
            }
            _ if self.words.first >> 28 == 0xb => {
                let mut d = self.words.start(Encoding::Sopk, bits(q, 27, 23), 1)?;
                d.sdst = renumber(bits(q, 22, 16));
                d.imm = imm;
                if d.op == "s_setreg_imm32_b32" {
                    d.src[0] = code::LITERAL;
                }
                d
            }
            _ if self.words.first >> 30 == 2 => {
                let mut d = self.words.start(Encoding::Sop2, bits(q, 29, 23), 1)?;
                d.sdst = renumber(bits(q, 22, 16));
                d.src = [renumber(bits(q, 7, 0)), renumber(bits(q, 15, 8)), code::ZERO];
                d
            }
            _ => return Err(DecodeError::Encoding { word: self.words.first }),
        };
        self.words.literal(&mut d, 2)?;
        Ok(d)
    }
}

fn takes_carry(op: &str) -> bool {
    matches!(op, "v_addc_co_u32" | "v_subb_co_u32" | "v_subbrev_co_u32")
}
