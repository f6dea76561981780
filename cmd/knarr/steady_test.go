package main

import (
	"regexp"
	"slices"
	"strings"
)

// unsteady is what differs from run to run, and what stands for it.
var unsteady = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`([WEI])\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ `), "${1}TIME "},
	{regexp.MustCompile(`(?m)^[WEI]TIME reflector\.go.*\n`), ""}, // a client that ends amid a watch
	{regexp.MustCompile(`[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d`), "TIME"},
	{regexp.MustCompile(`modifiedAt=\d+`), "modifiedAt=TIME"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`(LIVE|MERGED)-\d+`), "$1-N"},
	{regexp.MustCompile(`(resource version to be \d+, was )\d+`), "${1}RV"},
	{regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`), "TOKEN"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} 20\d\d \d\d:\d\d:\d\d [+-]\d{4}`), "TIME"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4} [A-Z]+`), "TIME"},
	{regexp.MustCompile(`(resourceVersion"?: ?)"\d+"`), `$1"RV"`},
	{regexp.MustCompile(`(?i)(resource ?version: *)\d+`), `${1}RV`},
	{regexp.MustCompile(`127\.0\.0\.1:\d{4,5}`), "SERVER"},
	{regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`), "ADDRESS"},
	{regexp.MustCompile(`\b3[0-2]\d{3}\b`), "NODEPORT"},
	{regexp.MustCompile(`(kubectl-edit|edit)-\d+\.yaml`), "$1-N.yaml"},
	{regexp.MustCompile(`([-=] ?|hash: )([bcdfghjklmnpqrstvwxz2456789]{8,10}|[4-9bcdf]{6,7})\b`), "${1}HASH"},
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-RANDOM"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b`), "AGE"},
	{regexp.MustCompile(`<invalid>`), "AGE"},
	{regexp.MustCompile(`(v1\.36\.3)\+knarr`), "$1"},
	{regexp.MustCompile(`(\S)[ \t]{2,}`), "$1  "}, // widths of columns
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
}

// steady is text with all of that replaced.
func steady(text string) string {
	for _, u := range unsteady {
		text = u.what.ReplaceAllString(text, u.with)
	}
	return sortKinds(strings.ReplaceAll(text, "\r", ""))
}

// sortKinds gives the kinds of a release an order: Helm lists them in that of a map.
func sortKinds(text string) string {
	const begin, end = "RESOURCES:\n==> ", "\nTEST SUITE"
	head, rest, listed := strings.Cut(text, begin)
	body, tail, ended := strings.Cut(rest, end)
	if !listed || !ended {
		return text
	}
	kinds := strings.Split(strings.TrimRight(body, "\n"), "\n\n==> ")
	slices.Sort(kinds)
	return head + begin + strings.Join(kinds, "\n\n==> ") + "\n\n" + end + tail
}
