const WEIGHTS = { 400: 'Regular', 500: 'Medium' };

/**
 * Fetch the text font before anything is drawn: the components measure text to lay it out, and
 * remember what they measured. Without the font they still draw, in another one.
 */
export async function loadFonts(): Promise<void> {
  await Promise.allSettled(
    Object.entries(WEIGHTS).map(async ([weight, name]) => {
      const font = new FontFace('Inter', `url(/fonts/inter/Inter-${name}.woff2)`, { weight });
      document.fonts.add(await font.load());
    }),
  );
}
