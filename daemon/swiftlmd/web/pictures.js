// Pictures for a question: from the clipboard, a drop or a file, as data URIs a model can take.

const LONGEST_SIDE = 1568; // larger ones cost tokens and show a model no more
const MOST = 8;

async function shrunk(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.9);
}

export const isPicture = (uri) => typeof uri === "string" && uri.startsWith("data:image/");

export async function pictures(files) {
  const found = [...(files || [])].filter((file) => file.type.startsWith("image/"));
  return Promise.all(found.slice(0, MOST).map(shrunk));
}

export const withPictures = (text, uris) => (uris?.length
  ? [{ type: "text", text }, ...uris.filter(isPicture).map((url) => ({ type: "image_url",
    image_url: { url } }))]
  : text);
