package logquery

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// logs is a directory of logs with what may lie there, and one beside it.
func logs(t testing.TB) string {
	top := t.TempDir()
	dir := filepath.Join(top, "log")
	for _, d := range []string{dir, dir + "/deep", dir + "/dirlog", dir + "/dirlog.log"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"log/plain": "plain\n", "log/dotted.log": "dotted\n", "log/dotted/dotted.log": "not this\n", "log/deep/deep.log": "deep\n",
		"log/deep/index.html": "index\n", "log/a\\b": "backslash\n", "secret": "secret\n",
	} {
		_ = os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o755)
		if err := os.WriteFile(filepath.Join(top, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"inside": "deep/deep.log", "outside": "../secret", "absolute": top + "/secret", "deep/up": "..", "loop": "loop", "self": dir + "/plain"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func answers(dir, program string) *handler {
	paths := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "path "+r.URL.Path) })
	return New(dir, program, "", paths).(*handler)
}

// TestAnswers: services of the journal, files, and what is neither.
func TestAnswers(t *testing.T) {
	dir := logs(t)
	const usual = "--utc\n--no-pager\n--output=short-precise\n"
	for _, c := range []struct {
		url  string
		code int
		want string
	}{
		{"/", 200, "path /"},
		{"/a/b?other=1", 200, "path /a/b"},
		{"/?query", 400, "query: Invalid value: [\"\"]: may not be empty\n"},
		{"/?tailLines=3", 406, "query: Required value: cannot be empty with options\n"},
		{"/plain?query=kubelet", 406, "path not allowed in query mode\n"},

		{"/?query=kubelet", 200, usual + "--unit=kubelet\n"},
		{"/?query=init.scope&query=kubelet.service&boot=0", 200, usual + "--unit=init.scope\n--unit=kubelet.service\n--boot=0\n"},
		{"/?query=kubelet&boot=-7", 200, "No such boot ID in journal\n"},
		{"/?query=kubelet&query=plain", 200, usual + "--unit=kubelet\nplain\n"},
		{"/?query=let", 200, "\nlog not found for let\n"},

		{"/?query=plain", 200, "plain\n"},
		{"/?query=dotted", 200, "dotted\n"},
		{"/?query=deep", 200, "deep\n"},
		{"/?query=deep&query=plain&query=none", 200, "deep\nplain\n\nlog not found for none\n"},
		{"/?query=inside", 200, "deep\n"},
		{"/?query=dirlog", 200, "\nlog not found for dirlog\n"},
		{"/?query=outside", 200, "\nerror getting log for outside: open outside: path escapes from parent\n"},
		{"/?query=absolute", 200, "\nerror getting log for absolute: open absolute: path escapes from parent\n"},
		{"/?query=..", 200, "\nerror getting log for ..: open ..: path escapes from parent\n"},
		{"/?query=fifo", 200, "\nerror getting log for fifo: open fifo: neither a regular file nor a directory\n"},
		{"/?query=plain&boot=0", 200, "\noptions present and query resolved to log files for [plain]\ntry without specifying options\n"},

		{"/?query=/plain", 200, "plain\n"},
		{"/?query=./plain", 200, "plain\n"},
		{"/?query=deep/../plain", 200, "plain\n"},
		{"/?query=/deep/deep.log", 200, "deep\n"},
		{`/?query=a\b`, 200, "backslash\n"},
		{"/?query=/deep/index.html", 200, "index\n"},
		{"/?query=/deep", 200, "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n<a href=\"deep.log\">deep.log</a>\n<a href=\"index.html\">index.html</a>\n<a href=\"up\">up</a>\n</pre>\n"},
		{"/?query=/none", 406, "query: Invalid value: [\"/none\"]: open /none: no such file or directory\n"},
		{"/?query=/../secret", 406, "query: Invalid value: [\"/../secret\"]: open /../secret: path escapes from parent\n"},
		{"/?query=/outside", 406, "query: Invalid value: [\"/outside\"]: open /outside: path escapes from parent\n"},
		{"/?query=/deep/up/../secret", 406, "query: Invalid value: [\"/deep/up/../secret\"]: open /deep/up/../secret: path escapes from parent\n"},
		{"/?query=/loop", 406, "query: Invalid value: [\"/loop\"]: open /loop: too many levels of symbolic links\n"},
		{"/?query=/fifo", 406, "query: Invalid value: [\"/fifo\"]: open /fifo: neither a regular file nor a directory\n"},
		{"/?query=/%00", 406, "query: Invalid value: [\"/\\u0000\"]: open /\x00: invalid argument\n"},
	} {
		w := httptest.NewRecorder()
		answers(dir, "testdata/journalctl").ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.url, nil))
		if w.Code != c.code || w.Body.String() != c.want {
			t.Errorf("%s: %d %q, want %d %q", c.url, w.Code, w.Body, c.code, c.want)
		}
	}
}

// TestNoJournal: a node without the program has files alone.
func TestNoJournal(t *testing.T) {
	w := httptest.NewRecorder()
	answers(logs(t), "testdata/none").ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?query=kubelet&query=plain", nil))
	if got := w.Body.String(); got != "\nlog not found for kubelet\nplain\n" {
		t.Errorf("%q", got)
	}
}

// TestCompressed: to whoever takes nothing else.
func TestCompressed(t *testing.T) {
	srv := httptest.NewServer(answers(logs(t), "testdata/none"))
	defer srv.Close()
	res, err := http.Get(srv.URL + "/?query=plain") // net/http asks for gzip
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); string(b) != "plain\n" || err != nil || !res.Uncompressed {
		t.Errorf("%q, %v, compressed %v", b, err, res.Uncompressed)
	}
}

// TestEndless: an answer has an end, which says so.
func TestEndless(t *testing.T) {
	srv := httptest.NewServer(answers(logs(t), "testdata/journalctl"))
	defer srv.Close()
	res, err := http.Get(srv.URL + "/?query=endless")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	last := "\nerror: " + errTooLong.Error() + "\n"
	if err != nil || len(b) != maxBytes+len(last) || !strings.HasSuffix(string(b), last) {
		t.Errorf("%d bytes, %v, %q", len(b), err, b[max(len(b)-200, 0):])
	}
}

// TestStuck: a journal that says nothing is left after a time.
func TestStuck(t *testing.T) {
	for _, program := range []string{"testdata/journalctl", "testdata/journalctl-without-answer"} {
		h := answers(logs(t), program)
		h.time = 300 * time.Millisecond
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?query=stuck", nil))
		if got := w.Body.String(); !strings.HasSuffix(got, "\nerror: "+errTime.Error()+"\n") {
			t.Errorf("%s: %q", program, got)
		}
	}
}

// plainly asks for an answer that is not compressed, so that it does not fit into
// the buffers of a connection.
func plainly(ctx context.Context, url string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept-Encoding", "identity")
	return http.DefaultClient.Do(r)
}

// TestClientGone: nothing runs on for a client that does not wait.
func TestClientGone(t *testing.T) {
	h, over := answers(logs(t), "testdata/journalctl"), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(over)
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	ctx, gone := context.WithCancel(t.Context())
	res, err := plainly(ctx, srv.URL+"/?query=endless")
	if err != nil {
		t.Fatal(err)
	}
	gone()
	res.Body.Close()
	<-over
	if len(h.busy) != 0 {
		t.Error("it still counts")
	}
}

// TestClientSleeps: a client that does not read is left after the time, too.
func TestClientSleeps(t *testing.T) {
	h, over := answers(logs(t), "testdata/journalctl"), make(chan struct{})
	h.time = 300 * time.Millisecond
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(over)
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	res, err := plainly(t.Context(), srv.URL+"/?query=endless")
	if err != nil {
		t.Fatal(err)
	}
	<-over
	res.Body.Close()
}

// TestBusy: a few at a time.
func TestBusy(t *testing.T) {
	h := answers(logs(t), "testdata/journalctl")
	for range maxAnswers {
		h.busy <- struct{}{}
	}
	for url, want := range map[string]int{"/?query=kubelet": 429, "/?query=/plain": 200, "/": 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
		if w.Code != want {
			t.Errorf("%s: %d", url, w.Code)
		}
	}
}

// TestListingIsBounded: names that pods may make are not read without end.
func TestListingIsBounded(t *testing.T) {
	dir := logs(t)
	for most, fails := range map[int]bool{1: true, 2: true, 3: false, 4: false} {
		f, _, err := directory(dir).open("/deep")
		if err != nil {
			t.Fatal(err)
		}
		entries, err := names{f, most}.ReadDir(-1)
		f.Close()
		if fails != errors.Is(err, errTooMany) || !fails && len(entries) != 3 {
			t.Errorf("%d at most: %d entries, %v", most, len(entries), err)
		}
	}
	f, _, err := directory(dir).open("/dirlog")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if entries, err := (names{f, 1}).ReadDir(-1); len(entries) != 0 || err != nil {
		t.Errorf("an empty one: %d entries, %v", len(entries), err)
	}
}

// TestBounded: what is written fits, and what does not is said to be cut.
func TestBounded(t *testing.T) {
	var out strings.Builder
	b := &bounded{w: &out, left: 5}
	for _, c := range []struct {
		write, have string
		err         error
	}{{"abc", "abc", nil}, {"de", "abcde", nil}, {"", "abcde", nil}, {"f", "abcde", errTooLong}} {
		if _, err := b.Write([]byte(c.write)); err != c.err || out.String() != c.have {
			t.Errorf("%q: %v, have %q", c.write, err, out.String())
		}
	}
}
