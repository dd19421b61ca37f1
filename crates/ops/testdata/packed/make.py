"""Makes small checkpoints in foreign packings and the numbers they hold, with the packages that define them.

    pip install torch transformers compressed-tensors safetensors
    pip download --no-deps auto-gptq==0.7.1 autoawq==0.2.9      (unpacked; only single files of them are loaded)
    python make.py AUTO_GPTQ_FOLDER AUTOAWQ_FOLDER

CASE.safetensors holds the pieces, CASE.json the quantization_config, CASE.f32 the weights in order, as f32.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
torch.manual_seed(7)


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(case, tensors, config, truth):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, HERE / f"{case}.safetensors")
    (HERE / f"{case}.json").write_text(json.dumps(config) + "\n")
    (HERE / f"{case}.f32").write_bytes(truth.float().contiguous().numpy().tobytes())


def gptq(folder):
    layer = load("qlinear_cuda", Path(folder) / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear
    n_in, n_out = 64, 32
    for case, bits, group, sym, act_order in [("gptq_sym4", 4, 32, True, False), ("gptq_asym4", 4, 32, False, False),
                                              ("gptq_act4", 4, 16, False, True), ("gptq_sym8", 8, 64, True, False)]:
        linear = torch.nn.Linear(n_in, n_out, bias=False).half()
        g_idx = torch.arange(n_in, dtype=torch.int32) // group
        if act_order:
            g_idx = g_idx[torch.randperm(n_in)]
        n_groups = n_in // group
        scales = (torch.rand(n_out, n_groups) * 0.02 + 0.01).half()
        middle = 2 ** (bits - 1)
        # Not 0: the first format cannot hold it, and its readers differ in what they make of it.
        zeros = torch.full((n_out, n_groups), middle) if sym else torch.randint(1, 2**bits, (n_out, n_groups))
        quant = layer(bits, group, n_in, n_out, False)
        quant.pack(linear, scales.float(), zeros.float(), g_idx)
        quant.eval()
        # An identity through the layer gives its weights: each output is one product with one.
        with torch.no_grad():
            truth = quant(torch.eye(n_in).half()).T
        pieces = {f"l.{name}": getattr(quant, name) for name in ["qweight", "qzeros", "scales", "g_idx"]}
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": sym}
        save(case, pieces, config, truth)
        if case == "gptq_asym4":
            # The second format differs in the zeros only: as they are, not less one.
            fields = torch.stack([(pieces["l.qzeros"] >> (4 * k)) & 15 for k in range(8)])
            fields = (fields + 1) & 15
            zeros = sum(fields[k].to(torch.int64) << (4 * k) for k in range(8)).to(torch.int32)
            save("gptq_v2", pieces | {"l.qzeros": zeros}, config | {"checkpoint_format": "gptq_v2"}, truth)


def awq(folder):
    packing = load("packing_utils", Path(folder) / "awq/utils/packing_utils.py")
    n_in, n_out, group = 64, 48, 32
    qweight = torch.randint(-2**31, 2**31 - 1, (n_in, n_out // 8), dtype=torch.int32)
    qzeros = torch.randint(-2**31, 2**31 - 1, (n_in // group, n_out // 8), dtype=torch.int32)
    scales = (torch.rand(n_in // group, n_out) * 0.02 + 0.01).half()
    truth = packing.dequantize_gemm(qweight, qzeros, scales, 4, group).T
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    save("awq", {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": scales}, config, truth)


def compressed():
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    n_out, n_in = 24, 64
    for case, bits, group, asym, kind in [("ct_pack4", 4, 32, False, torch.bfloat16), ("ct_asym4", 4, 16, True, torch.float16),
                                          ("ct_pack8", 8, 64, False, torch.float32)]:
        half = 2 ** (bits - 1)
        q = torch.randint(-half, half, (n_out, n_in)).to(torch.int8)
        scale = (torch.rand(n_out, n_in // group) * 0.02 + 0.01).to(kind)
        pieces = {"l.weight_packed": pack_to_int32(q, bits), "l.weight_scale": scale,
                  "l.weight_shape": torch.tensor([n_out, n_in])}
        unpacked = unpack_from_int32(pieces["l.weight_packed"], bits, torch.Size([n_out, n_in]))
        zero = torch.zeros(n_out, n_in // group)
        if asym:
            zero = torch.randint(-half, half, (n_out, n_in // group)).to(torch.int8)
            pieces["l.weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0)
            zero = unpack_from_int32(pieces["l.weight_zero_point"], bits, zero.shape, packed_dim=0)
        spread = lambda x: x.float().repeat_interleave(group, dim=1)
        truth = (unpacked.float() - spread(zero)) * spread(scale)
        weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group, "symmetric": not asym}
        config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
        save(case, pieces, config, truth)

    q = torch.randint(-128, 128, (n_out, n_in)).to(torch.int8)
    scale = (torch.rand(n_out, 1) * 0.001).float()
    config = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    save("ct_int8", {"l.weight": q, "l.weight_scale": scale}, config, q.float() * scale)

    packed = torch.randint(0, 256, (n_out, n_in // 2), dtype=torch.uint8)
    scale = (torch.rand(n_out, n_in // 16) * 100 + 1).to(torch.float8_e4m3fn)
    divisor = torch.tensor([1234.5])
    values = unpack_fp4_from_uint8(packed, n_out, n_in, dtype=torch.float32)
    truth = values * (scale.float() / divisor).repeat_interleave(16, dim=1)
    config = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    pieces = {"l.weight_packed": packed, "l.weight_scale": scale, "l.weight_global_scale": divisor}
    save("ct_nvfp4", pieces, config, truth)


def fp8():
    every = torch.arange(256, dtype=torch.uint8)
    for case, kind in [("fp8_e4m3", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)]:
        weight = every.view(kind)
        weight = weight[torch.isfinite(weight.float())].view(2, -1)
        save(case, {"l.weight": weight}, {}, weight.float())
    weight = (torch.randn(20, 40) * 3).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.0123)
    save("fp8_tensor", {"l.weight": weight, "l.weight_scale": scale}, {"quant_method": "fp8"}, weight.float() * scale)
    scale = torch.rand(20, 1).bfloat16()
    save("fp8_channel", {"l.weight": weight, "l.weight_scale": scale}, {"quant_method": "compressed-tensors"}, weight.float() * scale.float())
    # Blocks of 16 by 16 of a matrix that they do not divide.
    scale = torch.rand(2, 3)
    spread = scale.repeat_interleave(16, 0)[:20].repeat_interleave(16, 1)[:, :40]
    config = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    save("fp8_block", {"l.weight": weight, "l.weight_scale_inv": scale}, config, weight.float() * spread)


def mxfp4():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 130, (2, 6, 3), dtype=torch.uint8)
    truth = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32).transpose(1, 2)
    save("mxfp4", {"l.weight_blocks": blocks, "l.weight_scales": scales}, {"quant_method": "mxfp4"}, truth)


gptq(sys.argv[1])
awq(sys.argv[2])
compressed()
fp8()
mxfp4()
