package logquery

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxTime is how long an answer about services may take, with its client.
	maxTime = 30 * time.Second
	// maxBytes is how long such an answer is, before it is compressed.
	maxBytes = 64 << 20
	// maxAnswers is how many of them are made at a time: each may run a program.
	maxAnswers = 4
)

type handler struct {
	dir     directory
	program string
	own     string // the unit that the kubelet runs in
	paths   http.Handler
	time    time.Duration
	busy    chan struct{}
}

// New returns the handler of queries; paths answers requests that are none.
// dir has the logs, journalctl is the program's name or path, own the unit that
// is meant by kubelet where no unit is called so.
func New(dir, journalctl, own string, paths http.Handler) http.Handler {
	return &handler{dir: directory(dir), program: journalctl, own: own, paths: paths, time: maxTime, busy: make(chan struct{}, maxAnswers)}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, errs := Parse(r.URL.Query())
	if len(errs) > 0 {
		http.Error(w, errs.ToAggregate().Error(), http.StatusBadRequest)
		return
	}
	if q == nil {
		h.paths.ServeHTTP(w, r)
		return
	}
	if r.URL.Path != "" && r.URL.Path != "/" {
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return
	}
	if errs := q.Validate(); len(errs) > 0 {
		http.Error(w, errs.ToAggregate().Error(), http.StatusNotAcceptable)
		return
	}
	if len(q.Files) > 0 {
		h.file(w, r, q.Files[0])
		return
	}
	select {
	case h.busy <- struct{}{}:
		defer func() { <-h.busy }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many queries for logs at a time", http.StatusTooManyRequests)
		return
	}
	h.services(w, r, q)
}

// file answers with a file, or the names in a directory.
func (h *handler) file(w http.ResponseWriter, r *http.Request, name string) {
	f, info, err := h.dir.open(name)
	if err != nil {
		err := field.Invalid(field.NewPath("query"), []string{name}, err.Error())
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return
	}
	defer f.Close()
	if !info.IsDir() {
		http.ServeContent(w, r, info.Name(), info.ModTime(), f)
		return
	}
	// What is open is listed, whatever lies at its path by now.
	r = r.Clone(r.Context())
	r.URL.Path = "/"
	http.FileServer(listing{names{f, maxNames}}).ServeHTTP(w, r)
}

// services answers with the logs of services. What goes wrong on the way is a
// line of the answer: its status has been sent.
func (h *handler) services(w http.ResponseWriter, r *http.Request, q *Query) {
	ctx, cancel := context.WithTimeout(r.Context(), h.time)
	defer cancel()
	// A client that does not read ends with the time, too. Without a deadline to
	// set, as in tests, there is no connection to wait for.
	conn := http.NewResponseController(w)
	_ = conn.SetWriteDeadline(time.Now().Add(h.time + time.Second))
	defer func() { _ = conn.SetWriteDeadline(time.Time{}) }()

	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	out := &bounded{w: w, left: maxBytes}
	if r.Header.Get("Accept-Encoding") == "gzip" {
		w.Header().Set("Content-Encoding", "gzip")
		gz, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails for unknown levels only
		defer gz.Close()
		out.w = gz
	}
	units, others, err := h.split(ctx, q.Services)
	if len(units) > 0 {
		err = h.copyUnits(ctx, out, units, q.Options)
	}
	switch {
	case err != nil || len(others) == 0:
	case q.asked():
		_, err = fmt.Fprintf(out, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", others)
	default:
		for i := 0; i < len(others) && err == nil; i++ {
			err = h.copyFile(ctx, out, others[i])
		}
	}
	if err != nil {
		fmt.Fprintf(out.w, "\nerror: %v\n", err)
	}
}

// copyFile writes the first of a service's usual files that is there. An error
// is one that ends the answer.
func (h *handler) copyFile(ctx context.Context, out io.Writer, service string) error {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		f, info, err := h.dir.open(name)
		if err == nil && info.IsDir() {
			f.Close()
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			_, err = fmt.Fprintf(out, "\nerror getting log for %s: %v\n", service, err)
			return err
		}
		defer f.Close()
		// No further than it reaches now: it may be written faster than it is read.
		_, err = io.Copy(out, io.LimitReader(reader{ctx, f}, info.Size()))
		return err
	}
	_, err := fmt.Fprintf(out, "\nlog not found for %s\n", service)
	return err
}

// A reader reads until ctx ends.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, errTime
	}
	return r.Reader.Read(b)
}

var errTime = fmt.Errorf("the log took longer than %v to read: ask for less by tailLines, sinceTime or untilTime", maxTime)

var errTooLong = fmt.Errorf("the log goes on after %d MiB: ask for less by tailLines, sinceTime or untilTime, or for a file", maxBytes>>20)

// A bounded writer writes no more than is left.
type bounded struct {
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (n int, err error) {
	cut := len(p) > b.left
	if cut {
		p = p[:b.left]
	}
	n, err = b.w.Write(p)
	b.left -= n
	if err == nil && cut {
		err = errTooLong
	}
	return n, err
}
