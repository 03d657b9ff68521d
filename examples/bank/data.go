package bank

// Money is in cents everywhere.

// Account is the accounts service's answer: who has the account, and what was on it when the year began and ended.
type Account struct {
	Account int32  `json:"account"`
	Number  string `json:"number"` // as the bank writes it
	Kind    string `json:"kind"`
	Opened  string `json:"opened"` // a day: 2009-05-31
	Owner   string `json:"owner"`
	Street  string `json:"street"`
	Place   string `json:"place"`
	Opening int64  `json:"opening"`
	Closing int64  `json:"closing"`
}

// Year is the transactions service's answer: what went over an account, by month.
type Year struct {
	Year   int       `json:"year"`
	Months [12]Month `json:"months"` // from January
}

// Month is what came in and went out. Both are positive.
type Month struct {
	Movements int64 `json:"n,omitzero"`
	In        int64 `json:"in,omitzero"`
	Out       int64 `json:"out,omitzero"`
}

// Branch is the branches service's answer: which branch looks after a customer, and who there.
type Branch struct {
	Branch  int32  `json:"branch"`
	Name    string `json:"name"`
	Street  string `json:"street"`
	Place   string `json:"place"`
	Phone   string `json:"phone"`
	Adviser string `json:"adviser"`
}

// The codes of the errors that an account can get. Those of the HTTP service are its status codes.
const (
	CodeUnknownAccount = "unknown_account"
	CodeNoBalance      = "no_balance"
	CodeBrokenMovement = "broken_movement"
	CodeNoStatement    = "no_statement"
)
