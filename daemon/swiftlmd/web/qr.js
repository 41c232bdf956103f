// A QR code of a text of up to 106 bytes: byte mode, versions 1 to 6, error correction M.
// ISO/IEC 18004; these versions need no version information and have blocks of one length.

// Of each version: data bytes in all, blocks, correction bytes of a block.
const VERSIONS = [[16, 1, 10], [28, 1, 16], [44, 1, 26], [64, 2, 18], [86, 2, 24], [108, 4, 16]];
const MASKS = [
  (r, c) => (r + c) % 2, (r) => r % 2, (r, c) => c % 3, (r, c) => (r + c) % 3,
  (r, c) => (Math.floor(r / 2) + Math.floor(c / 3)) % 2, (r, c) => ((r * c) % 2) + ((r * c) % 3),
  (r, c) => (((r * c) % 2) + ((r * c) % 3)) % 2, (r, c) => (((r + c) % 2) + ((r * c) % 3)) % 2,
];
const FORMAT_M = 0;

const powers = new Uint8Array(255);
const logs = new Uint8Array(256);
for (let i = 0, x = 1; i < 255; i += 1) {
  powers[i] = x;
  logs[x] = i;
  x = (x << 1) ^ (x & 128 ? 0x11d : 0);
}
const times = (a, b) => (a && b ? powers[(logs[a] + logs[b]) % 255] : 0);

function correction(data, count) {
  let divisor = [1];
  for (let i = 0; i < count; i += 1) {
    divisor = [...divisor, 0].map((term, k) => term ^ times(divisor[k - 1] || 0, powers[i]));
  }
  const rest = [...data, ...new Array(count).fill(0)];
  for (let i = 0; i < data.length; i += 1) {
    const factor = rest[i];
    divisor.forEach((term, k) => { rest[i + k] ^= times(term, factor); });
  }
  return rest.slice(data.length);
}

function dataBytes(text, length) {
  const nibbles = [4, text.length >> 4, text.length & 15];
  for (const byte of text) nibbles.push(byte >> 4, byte & 15);
  nibbles.push(0);
  const bytes = [];
  for (let i = 0; i < nibbles.length; i += 2) bytes.push((nibbles[i] << 4) | nibbles[i + 1]);
  for (let pad = 0xec; bytes.length < length; pad ^= 0xec ^ 0x11) bytes.push(pad);
  return bytes;
}

const interleaved = (blocks) => blocks[0].flatMap((_, i) => blocks.map((block) => block[i]));

function codewords(text, [length, blockCount, correctionCount]) {
  const data = dataBytes(text, length);
  const size = length / blockCount;
  const blocks = Array.from({ length: blockCount }, (_, i) => data.slice(i * size, (i + 1) * size));
  return [...interleaved(blocks),
    ...interleaved(blocks.map((block) => correction(block, correctionCount)))];
}

// What every code of this size has; null is free for data.
function frame(size) {
  const grid = Array.from({ length: size }, () => new Array(size).fill(null));
  const square = (row, column, radius, dark) => {
    for (let r = -radius; r <= radius; r += 1) {
      for (let c = -radius; c <= radius; c += 1) {
        if (grid[row + r]?.[column + c] === undefined) continue;
        grid[row + r][column + c] = dark(Math.max(Math.abs(r), Math.abs(c)));
      }
    }
  };
  for (let i = 8; i < size - 8; i += 1) grid[6][i] = grid[i][6] = Number(i % 2 === 0);
  for (const [row, column] of [[3, 3], [3, size - 4], [size - 4, 3]]) {
    square(row, column, 4, (ring) => Number(ring < 2 || ring === 3));
  }
  if (size > 21) square(size - 7, size - 7, 2, (ring) => Number(ring !== 1));
  return grid;
}

function writeFormat(grid, mask) {
  const format = (FORMAT_M << 3) | mask;
  let rest = format << 10;
  for (let i = 4; i >= 0; i -= 1) if (rest & (1 << (i + 10))) rest ^= 0x537 << i;
  const bits = ((format << 10) | rest) ^ 0x5412;
  const last = grid.length - 1;
  for (let i = 0; i < 15; i += 1) {
    const bit = (bits >> i) & 1;
    const near = i < 6 ? i : i < 8 ? i + 1 : null;
    if (near !== null) grid[near][8] = bit;
    else grid[8][i === 8 ? 7 : 14 - i] = bit;
    if (i < 8) grid[8][last - i] = bit;
    else grid[last - 14 + i][8] = bit;
  }
  grid[last - 7][8] = 1;
}

function writeData(grid, words, mask) {
  let at = 0;
  for (let right = grid.length - 1, up = true; right > 0; right -= 2, up = !up) {
    if (right === 6) right = 5; // the column of the timing pattern
    for (let i = 0; i < grid.length; i += 1) {
      const row = up ? grid.length - 1 - i : i;
      for (const column of [right, right - 1]) {
        if (grid[row][column] !== null) continue;
        const bit = ((words[at >> 3] || 0) >> (7 - (at & 7))) & 1;
        grid[row][column] = bit ^ Number(MASKS[mask](row, column) === 0);
        at += 1;
      }
    }
  }
}

const FINDER_LIKE = /(?=10111010000|00001011101)/g;

// How hard a reader would find it, by the four rules of the standard.
function penalty(grid) {
  const size = grid.length;
  const columns = grid[0].map((_, c) => grid.map((row) => row[c]));
  let score = 0;
  for (const text of [...grid, ...columns].map((line) => line.join(""))) {
    for (const run of text.match(/0+|1+/g)) if (run.length > 4) score += run.length - 2;
    score += 40 * [...text.matchAll(FINDER_LIKE)].length;
  }
  for (let r = 1; r < size; r += 1) {
    for (let c = 1; c < size; c += 1) {
      const sum = grid[r][c] + grid[r - 1][c] + grid[r][c - 1] + grid[r - 1][c - 1];
      if (sum % 4 === 0) score += 3;
    }
  }
  const dark = grid.flat().reduce((total, bit) => total + bit, 0) / size ** 2;
  return score + 10 * Math.floor(Math.abs(dark - 0.5) * 20);
}

// Rows of 0 and 1 (dark), without the quiet margin.
export function qrCode(string) {
  const text = new TextEncoder().encode(string);
  const version = VERSIONS.findIndex(([length]) => length >= text.length + 2);
  if (version < 0) throw new RangeError("this text is too long for a QR code");
  const words = codewords(text, VERSIONS[version]);
  const drawn = MASKS.map((_, mask) => {
    const grid = frame(21 + 4 * version);
    writeFormat(grid, mask);
    writeData(grid, words, mask);
    return grid;
  });
  const scores = drawn.map(penalty);
  return drawn[scores.indexOf(Math.min(...scores))];
}
