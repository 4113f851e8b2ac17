// How numbers and tokens are written: letter for letter as `kvviz.results.words` does it.
const MISSING = '–';
const finite = x => typeof x === 'number' && Number.isFinite(x);
const halfUp = x => Math.floor(x + 0.5);
const grouped = text => text.replace(/\B(?=(\d{3})+(\.|$))/g, ',');  // "1,234.5"

// `digits` decimals, a tie to the even digit as in Python; `toFixed` takes the larger.
function fixed(x, digits) {
  const size = 10 ** digits, tie = Number.isInteger(x * 2 ** (digits + 1)) && Math.abs(x * size % 1) === 0.5;
  return (tie ? 2 * Math.round(x * size / 2) / size : x).toFixed(digits);
}

export const fmt = {
  count: x => finite(x) ? grouped(String(halfUp(x))) : MISSING,

  // "20%"; one decimal below 2%; never "0%" for something, nor "100%" for less than all.
  share(x) {
    if (!finite(x)) return MISSING;
    const percent = 100 * x;
    if (percent > 0 && percent < 0.05) return '<0.1%';
    if (percent >= 99.5 && percent < 100 - 1e-9) return '>99%';
    if (percent > 0 && percent < 2) {
      const tenths = halfUp(percent * 10) / 10;
      return tenths < 2 ? `${tenths.toFixed(1)}%` : '2%';
    }
    return `${halfUp(percent)}%`;
  },

  // A budget given as a share: "1%" where it is a whole percent, else as any share.
  budget(x) {
    const percent = 100 * x;
    return Math.abs(percent - Math.round(percent)) < 1e-9 ? `${Math.round(percent)}%` : fmt.share(x);
  },

  // "18%"; ">1,000%" above ten times the original.
  error(x) {
    if (!finite(x)) return MISSING;
    if (x > 10) return '>1,000%';
    if (x > 0 && x < 0.0005) return '<0.1%';
    if (x > 0 && x < 0.02) return fmt.share(x);
    return `${fmt.count(100 * x)}%`;
  },

  // Two significant digits, "<0.001" below that.
  kl(x) {
    if (!finite(x)) return MISSING;
    if (x < 0.001) return '<0.001';
    let digits = Math.max(0, 1 - Math.floor(Math.log10(x)));
    if (Number(fixed(x, digits)) >= 10 ** (2 - digits)) digits = Math.max(0, digits - 1);
    if (digits) return fixed(x, digits);
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(x)) - 1);
    return grouped(String(Number(fixed(x / unit, 0)) * unit));
  },

  // Bytes as "9.4 MB" (1 MB = 1,000,000 bytes).
  mb: x => finite(x) ? `${grouped(fixed(x / 1e6, 1))} MB` : MISSING,

  // "0.8 s"; minutes from 100 s on.
  seconds(x) {
    if (!finite(x)) return MISSING;
    if (x < 9.95) return `${fixed(x, 1)} s`;
    const whole = halfUp(x);
    return whole < 100 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
  },
};

// Whitespace made visible and length bounded, for read-outs (the server does the same for figures).
export function shown(text, limit = 20) {
  const seen = text.replace(/ /g, '·').replace(/\n/g, '⏎').replace(/\t/g, '⇥')
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, '\u25a1');
  const points = [...seen];
  return points.length > limit ? points.slice(0, limit - 1).join('') + '…' : seen;
}

export const spanName = tok => tok[1] - tok[0] > 1 ? `${tok[0]}–${tok[1] - 1}` : `${tok[0]}`;

// A title stands above its figure as plain text; inside the figure it was escaped for plotly.
export const plainTitle = text =>
  (text || '').replace(/<br>/g, ' ').replace(/&lt;/g, '<').replace(/&gt;/g, '>')
  .replace(/&quot;/g, '"').replace(/&#x27;/g, "'").replace(/&#36;/g, '$').replace(/&amp;/g, '&');

const KINDS = {f8: Float64Array, f4: Float32Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array,
  u2: Uint16Array, i4: Int32Array, u4: Uint32Array};

// plotly.py, and `packed` on the server, write arrays as {dtype, bdata, shape}.
export function typed(spec) {
  if (Array.isArray(spec) || !spec || !spec.bdata) return spec;
  const bytes = Uint8Array.from(atob(spec.bdata), ch => ch.charCodeAt(0));
  const flat = new (KINDS[spec.dtype] || Float64Array)(bytes.buffer);
  const shape = String(spec.shape || '').split(',').map(Number).filter(n => n > 0);
  if (shape.length < 2) return flat;
  return Array.from({length: shape[0]}, (_, row) => flat.subarray(row * shape[1], (row + 1) * shape[1]));
}
