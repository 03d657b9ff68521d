package workqueue

const (
	// messageShape is an SQL expression on work_part p: the error message with what differs from item to item taken out:
	// UUIDs, quoted text, hexadecimal numbers and numbers. It is the same for views, selections and reports.
	messageShape = `left(regexp_replace(regexp_replace(regexp_replace(regexp_replace(p.error_message,
    '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '<id>', 'g'),
    '"[^"]*"|''[^'']*''', '<text>', 'g'),
    '\m(0x)?[0-9a-fA-F]*[0-9][0-9a-fA-F]*\M', '<n>', 'g'),
    '[0-9]+', '<n>', 'g'), 200)`

	// messageGroup is the id of a group of errors: of a step, a code and a shape.
	messageGroup = `left(md5(p.step || ':' || p.error_code || ':' || ` + messageShape + `), 8)`
)
