//! Mistakes that silicon would not report, each caught by name.

use gfx_model::bare::Arg;

use crate::kernels::on_each_chip;

#[test]
fn an_access_past_the_end_names_lane_address_and_allocation() {
    on_each_chip(false, |device, module, _| {
        let out = device.alloc(256 * 4);
        let e =
            device.launch(module, "past_end", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&out), Arg::I32(250)]).unwrap_err();
        let text = e.to_string();
        let want = format!("write of 4 bytes at {:#x} by lane 6", out.address() + 1024);
        assert!(text.contains("kernel `past_end`"), "{text}");
        assert!(text.contains(&want), "{want} in: {text}");
        assert!(text.contains("0 bytes past the end of allocation") && text.contains("1024 bytes)"), "{text}");
        assert!(text.contains("global_store"), "{text}");
    });
}

#[test]
fn a_read_of_unwritten_memory_is_reported_and_a_written_one_is_not() {
    on_each_chip(true, |device, module, _| {
        let (fresh, out) = (device.alloc(256 * 4), device.alloc(256 * 4));
        let args = [Arg::Buffer(&fresh), Arg::Buffer(&out)];
        let text = device.launch(module, "unwritten", [1, 1, 1], [64, 1, 1], &args).unwrap_err().to_string();
        assert!(text.contains("read of 4 bytes of global memory nobody wrote"), "{text}");
        assert!(text.contains(&format!("{:#x} by lane 0", fresh.address())), "{text}");
        let full = device.upload(&[0; 1024]);
        device.launch(module, "unwritten", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&full), Arg::Buffer(&out)]).unwrap();
        // What a kernel wrote may be read, zeros included.
        device.launch(module, "unwritten", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&out), Arg::Buffer(&fresh)]).unwrap();
    });
}

#[test]
fn a_race_in_lds_is_found_whatever_the_order() {
    on_each_chip(true, |device, module, _| {
        let out = device.alloc(256 * 4);
        let text = device.launch(module, "race", [1, 1, 1], [256, 1, 1], &[Arg::Buffer(&out)]).unwrap_err().to_string();
        // Wave 0 runs first and reads what the last wave has not written yet.
        assert!(text.contains("LDS") && (text.contains("race") || text.contains("nobody wrote")), "{text}");
    });
}

#[test]
fn unwritten_lds_is_reported() {
    on_each_chip(true, |device, module, _| {
        let out = device.alloc(256 * 4);
        let text = device
            .launch(module, "lds_unwritten", [1, 1, 1], [64, 1, 1], &[Arg::Buffer(&out)])
            .unwrap_err()
            .to_string();
        assert!(text.contains("of LDS nobody wrote") && text.contains("lane 7"), "{text}");
    });
}

#[test]
fn a_freed_buffer_is_out_of_bounds() {
    on_each_chip(false, |device, module, _| {
        let out = device.alloc(1024);
        let gone = out.address();
        drop(out);
        let args = [Arg::Address(gone), Arg::I32(0)];
        let text = device.launch(module, "past_end", [1, 1, 1], [64, 1, 1], &args).unwrap_err().to_string();
        assert!(text.contains("memory access fault"), "{text}");
    });
}
