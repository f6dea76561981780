package logquery

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestQueries: what is asked for, or why not, in upstream's words.
func TestQueries(t *testing.T) {
	const date = "2026-01-02T03:04:05Z"
	for _, c := range []struct {
		query, parse, validate string
		args                   []string
	}{
		{query: "", args: nil},
		{query: "other=1", args: nil},
		{query: "query=kubelet", args: []string{"--unit=kubelet"}},
		{query: "query=a&query=b.service", args: []string{"--unit=a", "--unit=b.service"}},
		{query: "query=a&query=+", args: []string{"--unit=a"}},
		{query: "query=/a.log", args: []string{}},
		{query: `query=a\b`, args: []string{}},
		{query: "query=a&tailLines=3&boot=-1&pattern=x%20y", args: []string{"--lines=3", "--unit=a", "--grep=x y", "--boot=-1"}},
		{query: "query=a&tailLines=0&boot=0", args: []string{"--lines=0", "--unit=a", "--boot=0"}},
		{query: "query=a&sinceTime=" + date + "&untilTime=2026-01-02T06:04:05.25%2B02:00",
			args: []string{"--since=2026-01-02 03:04:05 UTC", "--until=2026-01-02 04:04:05.25 UTC", "--unit=a"}},

		{query: "query", parse: `query: Invalid value: [""]: may not be empty`},
		{query: "query=&query=+", parse: `query: Invalid value: [""," "]: may not be empty`},
		{query: "query=a&sinceTime=now", parse: `sinceTime: Invalid value: "now": invalid time format`},
		{query: "query=a&untilTime=1", parse: `untilTime: Invalid value: "1": invalid time format`},
		{query: "query=a&boot=x", parse: `boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax`},
		{query: "query=a&boot=x&tailLines=y", parse: `[boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax, tailLines: Invalid value: "y": strconv.Atoi: parsing "y": invalid syntax]`},

		{query: "boot=0", validate: `query: Required value: cannot be empty with options`},
		{query: "query=a&query=/b", validate: `query: Invalid value: "[/b], [a]": cannot specify a file and service`},
		{query: "query=/a&query=/b", validate: `query: Invalid value: ["/a","/b"]: cannot specify more than one file`},
		{query: "query=/a&boot=0", validate: `query: Invalid value: ["/a"]: cannot specify file with options`},
		{query: "query=a$b", validate: `query: Invalid value: "a$b": input contains unsupported characters`},
		{query: "query=a%20--file=x", validate: `query: Invalid value: "a --file=x": input contains unsupported characters`},
		{query: "query=" + strings.Repeat("a", 257), validate: `query: Invalid value: "` + strings.Repeat("a", 257) + `": length must be less than 256`},
		{query: "query=a&query=b&query=c&query=d&query=e", validate: `query: Too many: 5: must have at most 4 items`},
		{query: "query=a&boot=1", validate: `boot: Invalid value: 1: must be less than 1`},
		{query: "query=a&tailLines=-1", validate: `tailLines: Invalid value: -1: must be between 0 and 100000, inclusive`},
		{query: "query=a&tailLines=100001", validate: `tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive`},
		{query: "query=a&pattern=(", validate: "pattern: Invalid value: \"(\": error parsing regexp: missing closing ): `(`"},
		{query: "query=a&pattern=%00", validate: `pattern: Invalid value: "\x00": may not contain a zero byte`},
		{query: "query=a&pattern=" + strings.Repeat("x", 4097), validate: `pattern: Too long: may not be more than 4096 bytes`},
		{query: "query=a&sinceTime=2026-01-02T03:04:06Z&untilTime=" + date, validate: `untilTime: Invalid value: "` + date + "\": must be after `sinceTime`"},
	} {
		values, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		q, errs := Parse(values)
		if len(errs) > 0 || c.parse != "" {
			if len(errs) == 0 || errs.ToAggregate().Error() != c.parse {
				t.Errorf("%s: %v, want %s", c.query, errs.ToAggregate(), c.parse)
			}
			continue
		}
		if q == nil {
			if c.args != nil || c.validate != "" {
				t.Errorf("%s: no query", c.query)
			}
			continue
		}
		errs = q.Validate()
		if len(errs) > 0 || c.validate != "" {
			if len(errs) == 0 || errs.ToAggregate().Error() != c.validate {
				t.Errorf("%s: %v, want %s", c.query, errs.ToAggregate(), c.validate)
			}
			continue
		}
		if got := arguments(q.Services, q.Options)[3:]; !slices.Equal(got, c.args) || c.args == nil {
			t.Errorf("%s: %q, want %q", c.query, got, c.args)
		}
	}
}

// TestOptionsAlone: an option that says nothing is none.
func TestOptionsAlone(t *testing.T) {
	now := time.Now()
	for _, o := range []Options{{SinceTime: &now}, {UntilTime: &now}, {TailLines: new(int)}, {Boot: new(int)}, {Pattern: "x"}} {
		if !o.asked() {
			t.Errorf("%+v is not asked for", o)
		}
	}
	if (Options{}).asked() {
		t.Error("nothing is asked for")
	}
}
