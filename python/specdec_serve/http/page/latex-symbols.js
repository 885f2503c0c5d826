// What LaTeX's commands of one symbol show.

/** Letters, operators, relations and arrows, by the names of their commands. */
export const SYMBOLS = words(`
  alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι
  kappa κ lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ
  phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ
  Phi Φ Psi Ψ Omega Ω hbar ℏ ell ℓ wp ℘ Re ℜ Im ℑ aleph ℵ imath ı jmath ȷ infty ∞ emptyset ∅
  varnothing ∅ partial ∂ nabla ∇ prime ′ angle ∠ triangle △ degree ° circ ∘ bullet • star ⋆ ast ∗
  pm ± mp ∓ times × div ÷ cdot ⋅ cup ∪ cap ∩ setminus ∖ wedge ∧ land ∧ vee ∨ lor ∨ neg ¬ lnot ¬
  oplus ⊕ ominus ⊖ otimes ⊗ odot ⊙ dagger † ddagger ‡ amalg ⨿
  leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ leqslant ⩽ geqslant ⩾ ll ≪ gg ≫ approx ≈ equiv ≡ cong ≅ sim ∼
  simeq ≃ propto ∝ doteq ≐ prec ≺ succ ≻ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ nsubseteq ⊈
  subsetneq ⊊ in ∈ notin ∉ ni ∋ mid ∣ nmid ∤ parallel ∥ perp ⊥ bot ⊥ top ⊤ vdash ⊢ models ⊨
  forall ∀ exists ∃ nexists ∄ therefore ∴ because ∵
  to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ implies ⟹ Leftarrow ⇐
  impliedby ⟸ Leftrightarrow ⇔ iff ⟺ longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹
  longleftrightarrow ⟷ mapsto ↦ longmapsto ⟼ uparrow ↑ downarrow ↓ updownarrow ↕ nearrow ↗
  searrow ↘ hookrightarrow ↪ rightharpoonup ⇀ rightleftharpoons ⇌
  ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ colon : vert | lvert | rvert | Vert ‖
  lVert ‖ rVert ‖ langle ⟨ rangle ⟩ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ lbrace { rbrace } lbrack [
  rbrack ] backslash ∖ square □ Box □ blacksquare ■ checkmark ✓ int ∫ iint ∬ iiint ∭ oint ∮
  { { } } % % $ $ & & # # _ _ | ‖ S § P ¶
`);

/** Operators that are large in blocks, with their scripts above and below. */
export const LARGE = words(`
  sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀ bigsqcup ⨆
`);

/** Functions, by name: those whose scripts are below them in blocks, and the others. */
export const FUNCTIONS = {
  limits: "lim limsup liminf max min sup inf argmax argmin det gcd Pr".split(" "),
  plain: (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp deg dim hom ker " +
    "arg"
  ).split(" "),
};

/** Widths of spaces; empty for those that are left out. */
export const SPACES = {
  ",": "0.17em",
  ":": "0.22em",
  ">": "0.22em",
  ";": "0.28em",
  " ": "0.33em",
  "!": "",
  "/": "",
  quad: "1em",
  qquad: "2em",
  enspace: "0.5em",
  thinspace: "0.17em",
};

export const ACCENTS = {
  hat: { mark: "^" },
  widehat: { mark: "^", isWide: true },
  check: { mark: "ˇ" },
  tilde: { mark: "~" },
  widetilde: { mark: "~", isWide: true },
  bar: { mark: "¯" },
  vec: { mark: "→" },
  dot: { mark: "˙" },
  ddot: { mark: "¨" },
  mathring: { mark: "˚" },
  overline: { mark: "¯", isWide: true },
  overrightarrow: { mark: "→", isWide: true },
  overbrace: { mark: "⏞", isWide: true, isBrace: true },
  underline: { mark: "_", isBelow: true, isWide: true },
  underbrace: { mark: "⏟", isBelow: true, isWide: true, isBrace: true },
};

/** Fences behind \left, \right and \big. */
export const FENCES = Object.fromEntries(
  Object.entries(
    words(`
      { { } } | ‖ langle ⟨ rangle ⟩ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ lbrace { rbrace } vert | Vert ‖
      lvert | rvert | lVert ‖ rVert ‖ lbrack [ rbrack ]
    `),
  ).map(([name, text]) => [`\\${name}`, text]),
);

const SCRIPT = {
  first: 0x1d49c,
  exceptions: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
};

/**
 * Alphabets: the code point of A, which the other letters follow, and letters that Unicode has
 * elsewhere.
 */
export const ALPHABETS = {
  mathbf: { first: 0x1d400 },
  boldsymbol: { first: 0x1d468 },
  bm: { first: 0x1d468 },
  mathit: { first: 0x1d434, exceptions: { h: "ℎ" } },
  mathbb: {
    first: 0x1d538,
    exceptions: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ", 1: "𝟙" },
  },
  mathcal: SCRIPT,
  mathscr: SCRIPT,
  mathfrak: {
    first: 0x1d504,
    exceptions: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  },
};

/** Pairs of words as an object. */
function words(text) {
  const all = text.trim().split(/\s+/);
  return Object.fromEntries(all.map((word, i) => [word, all[i + 1]]).filter((_, i) => i % 2 === 0));
}
