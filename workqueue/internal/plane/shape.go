package plane

const (
	// MessageShape is an SQL expression on work_part p: the error message with a # for each thing that differs from item
	// to item. These are, in this order: text in quotes, also when its end is missing, UUIDs, words with a letter after
	// a digit, words of 7 hexadecimal digits or more, and numbers, dates, times and lists of them. Of messages that are
	// longer than any person reads, the beginning counts. It is the same for views, selections and reports.
	MessageShape = `left(regexp_replace(left(coalesce(p.error_message, ''), 1000),
    '"[^"]*(?:"|$)|\u0060[^\u0060]*\u0060|“[^”]*”|«[^»]*»|\Y''[^'']*''\Y' ||
    '|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}' ||
    '|\m\w*[0-9][A-Za-z_]\w*\M|\m[0-9a-fA-F]{7,}\M|[0-9]+(?:(?:[.,:/-]|, )[0-9]+)*', '#', 'g'), 200)`

	// MessageGroup is the id of a group of errors: of a step, a code and a shape.
	MessageGroup = `left(md5(p.step || ':' || p.error_code || ':' || ` + MessageShape + `), 8)`
)
