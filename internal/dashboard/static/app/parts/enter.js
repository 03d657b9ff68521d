// Rows of lists that are not tables: j and k move, Enter opens.

/** onEnter returns a handler for Enter on a row itself, not on its content. */
export const onEnter = (act) => (e) => {
  if (e.key !== "Enter" || e.target !== e.currentTarget) return;
  e.preventDefault();
  act(e.currentTarget);
};
