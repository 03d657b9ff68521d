package workqueue

// SettingError is returned for a setting that an endpoint cannot have.
type SettingError struct{ Detail string }

func (e *SettingError) Error() string { return e.Detail }
