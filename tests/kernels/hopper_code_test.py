"""The machine code of the Hopper kernels: nothing on a stack, and products that are queued in groups.
usage: hopper_code_test.py CUOBJDUMP LIBRARY

Where the assembler lacks registers it waits for each product before the next ("wgmma.mma_async instructions are
serialized"), which it only mentions: then every product ends a group of its own (gsb0)."""
import re, subprocess, sys


def main():
    dump, library = sys.argv[1:]
    run = lambda *flags: subprocess.run([dump, *flags, library], check=True, capture_output=True, text=True).stdout
    kernels = re.findall(r'Function (\S+):\n\s*(.*)', run('--dump-resource-usage'))
    wrong = [f'{name}: {usage}' for name, usage in kernels
             if re.search(r'STACK:[1-9]', usage) or re.search(r'LOCAL:[1-9]', usage)]
    queued = 0
    for function in run('-sass').split('Function : ')[1:]:
        products = function.count('HGMMA')
        alone = len(re.findall(r'HGMMA[^;]*gsb0', function))
        queued += products > 0
        if alone * 3 > products: wrong.append(f'{function.split()[0]}: {alone} of {products} products alone in a group')
    if not queued: wrong.append('no kernel has warpgroup products')
    print('\n'.join(wrong) or f'{len(kernels)} kernels without a stack, {queued} with products in groups')
    return bool(wrong)


if __name__ == '__main__': sys.exit(main())
