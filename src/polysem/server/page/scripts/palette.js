// Colours that colour-blind readers tell apart (after Okabe and Ito), on light and on dark paper.
import { isDark } from "./theme.js";

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7A4FBF", "#8B1E3F"];
const DARK = ["#4FA8E0", "#F0803C", "#2FC79B", "#E8A3C8", "#E8B93F", "#9AD6F8", "#B59AF0", "#D8F5A2"];

/** How many differ; what comes after these is "the rest", in grey. */
export const COLOURS = LIGHT.length;
export const rest = () => (isDark() ? "#9a9a9a" : "#767676");
export const colourOf = (place) => (place >= COLOURS ? rest() : (isDark() ? DARK : LIGHT)[place]);
