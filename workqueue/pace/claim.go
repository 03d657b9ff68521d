package pace

// Bound says what kept a claim from taking more.
type Bound string
