// Rows of lists that are no tables: j and k go from one to the next, and Enter does what each is for.

/** onEnter is a handler that acts when Enter is pressed on a row itself, not on something in it. */
export const onEnter = (act) => (e) => {
  if (e.key !== "Enter" || e.target !== e.currentTarget) return;
  e.preventDefault();
  act(e.currentTarget);
};
