// Text files that go with a message.

const MAX_BYTES = 1 << 20; // more than any context holds

/** A file that is no text, or too long. */
export class FileError extends Error {}

/** A file of the user's as {name, text}. Throws FileError. */
export async function readFile(file) {
  if (file.size > MAX_BYTES) throw new FileError(`${file.name} is longer than 1 MiB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, text };
  } catch {
    // not UTF-8, or gone
  }
  throw new FileError(`${file.name} is not a text file.`);
}

/** The content of a message: files come first, each in a fence that it cannot close. */
export function withFiles(text, files = []) {
  const blocks = files.map((file) => {
    const runs = file.text.match(/`{3,}/g) ?? [];
    const fence = "`".repeat(Math.max(2, ...runs.map((run) => run.length)) + 1);
    const language = /\.(\w+)$/.exec(file.name)?.[1] ?? "";
    return `${file.name}:\n\n${fence}${language}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...blocks, ...(text === "" ? [] : [text])].join("\n\n");
}
