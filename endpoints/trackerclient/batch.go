package trackerclient

import (
	"errors"
	"time"
)

// BatchSettings configures a new batch.
type BatchSettings struct {
	ID    string `json:"id,omitempty" format:"uuid" doc:"a UUID of the caller's; absent: one is made"`
	Owner string `json:"owner" minLength:"1" maxLength:"200" doc:"whose it is" example:"billing"`
	Key   string `json:"key,omitempty" maxLength:"200" doc:"opens one batch for the owner, once" example:"2026-11"`

	OpenIdle   string `json:"open_idle,omitempty" doc:"expires when open and idle for so long; 24h when absent"`
	SealedIdle string `json:"sealed_idle,omitempty" doc:"expires when sealed and idle for so long; 168h when absent"`
	Keep       string `json:"keep,omitempty" doc:"how long it is kept after it ends; absent: 168h"`

	Webhook *WebhookSettings `json:"webhook,omitempty" doc:"notified when the batch ends"`
}

// WebhookSettings configures the HTTP notification of a batch's end.
type WebhookSettings struct {
	URL    string `json:"url" maxLength:"2000" doc:"of a host that the secret is meant for"`
	Secret string `json:"secret" maxLength:"64" doc:"name of a secret in the operator's file, which signs" example:"hooks"`
}

// BatchOpened is an opened batch or, if Existing, the one already opened with the ID or key.
type BatchOpened struct {
	ID       string `json:"id" format:"uuid"`
	Existing bool   `json:"existing" doc:"it was opened before; nothing was changed"`
}

// GroupSettings describes items to add.
type GroupSettings struct {
	Items int64  `json:"items" doc:"how many, up to 1,000,000,000" example:"20000"`
	Key   string `json:"key,omitempty" maxLength:"200" doc:"adds them once to the batch, however often" example:"first"`
}

// GroupsAdded is the groups created for added items: 8192 items each, the last one fewer. Item n has the ID
// batch:group:index with group first_group + n/8192 and index n%8192.
type GroupsAdded struct {
	Batch      string `json:"batch" format:"uuid"`
	FirstGroup int    `json:"first_group"`
	Groups     int    `json:"groups"`
	Items      int64  `json:"items"`
	FirstID    string `json:"first_id" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58:0:0"`
	LastID     string `json:"last_id" example:"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58:2:3615"`
	Existing   bool   `json:"existing" doc:"the key was used before, for as many items"`
}

// Acknowledgement names items that are done, or, with a code, permanently failed.
type Acknowledgement struct {
	IDs    []string `json:"ids,omitempty" nullable:"false" doc:"batch:group:index, 100,000 at most"`
	Ranges []string `json:"ranges,omitempty" nullable:"false" doc:"10,000 at most"`
	Code   FailCode `json:"code,omitempty" minLength:"1" maxLength:"64" doc:"why they have failed; absent: they are done" example:"LATE"`
}

// FailCode is a code of failed items. Read from a request it is not empty: that would acknowledge them as done.
type FailCode string

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *FailCode) UnmarshalText(text []byte) error {
	if *c = FailCode(text); *c == "" {
		return errors.New("it is empty; leave it out for items that are done")
	}
	return nil
}

// BatchesAcked is the effect of an acknowledgement.
type BatchesAcked struct {
	Newly            int64    `json:"newly" doc:"items that were pending until now"`
	CompletedBatches []string `json:"completed" doc:"the batches that this call, and no other, has completed"`
}

// BatchSealed is a batch closed to new items.
type BatchSealed struct {
	Batch     string `json:"batch" format:"uuid"`
	Completed bool   `json:"completed" doc:"this call has completed it: nothing was pending"`
}

// BatchSummary is a batch without item counts.
type BatchSummary struct {
	ID        string `json:"id" format:"uuid"`
	Namespace string `json:"namespace" doc:"that owns it"`

	Owner string `json:"owner"`
	Key   string `json:"key,omitempty"`
	State string `json:"state" enum:"open,sealed,completed,expired"`
	Items int64  `json:"items"`

	Groups     int `json:"groups"`
	OpenGroups int `json:"open_groups" doc:"with items that are pending"`

	CreatedBy   string     `json:"created_by"`
	CreatedAt   time.Time  `json:"created_at"`
	ActiveAt    time.Time  `json:"active_at" doc:"the last change; acknowledgements move it now and then"`
	SealedAt    *time.Time `json:"sealed_at,omitempty" nullable:"false"`
	CompletedAt *time.Time `json:"completed_at,omitempty" nullable:"false"`
	ExpiredAt   *time.Time `json:"expired_at,omitempty" nullable:"false"`

	OpenIdle   string `json:"open_idle" doc:"expires when open and idle for so long"`
	SealedIdle string `json:"sealed_idle" doc:"expires when sealed and idle for so long"`
	Keep       string `json:"keep" doc:"how long it is kept after it ends"`

	Webhook *WebhookView `json:"webhook,omitempty"`
}

// BatchView is a batch with item counts.
type BatchView struct {
	BatchSummary

	Pending int64            `json:"pending" doc:"items that no one has acknowledged"`
	Done    int64            `json:"done"`
	Failed  int64            `json:"failed"`
	Codes   map[string]int64 `json:"codes,omitempty" nullable:"false" doc:"of the failed items, the 100 most frequent"`
	Missing []string         `json:"missing,omitempty" nullable:"false" doc:"ranges of what is pending, if requested"`
}

// WebhookView is the state of a batch's notification.
type WebhookView struct {
	URL      string     `json:"url"`
	Secret   string     `json:"secret" doc:"its name"`
	State    string     `json:"state" enum:"none,due,delivered,given_up" doc:"none: the batch has not ended"`
	Attempts int        `json:"attempts"`
	NextAt   *time.Time `json:"next_at,omitempty" nullable:"false"`
	Error    string     `json:"error,omitempty" doc:"why the last attempt was none"`
}

// BatchPage is a page of batches, newest first.
type BatchPage struct {
	Batches []BatchSummary `json:"batches"`
	Next    string         `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// GroupView is the item counts of a group.
type GroupView struct {
	Group   int `json:"group"`
	Size    int `json:"size"`
	Pending int `json:"pending"`
	Done    int `json:"done"`
	Failed  int `json:"failed"`
}

// GroupPage is a page of a batch's groups, in order.
type GroupPage struct {
	Batch  string      `json:"batch" format:"uuid"`
	Groups []GroupView `json:"groups"`
	Next   *int        `json:"next,omitempty" nullable:"false" doc:"value of after for the next page; absent on the last"`
}

// MissingPage is a page of pending items, as ranges like 12:0-8191 that acknowledgements accept.
type MissingPage struct {
	Batch  string   `json:"batch" format:"uuid"`
	Ranges []string `json:"ranges"`
	Next   string   `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// BatchDeleted confirms a deletion.
type BatchDeleted struct {
	Batch string `json:"batch" format:"uuid"`
}
