package pace

const MinCallRate = 0.0001 // calls a second: about one in three hours

const MaxCallRate = 100_000
