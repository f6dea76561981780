// Package imagesdir keeps the images of a node that an administrator puts into a
// directory: archives, and lists of names to pull. It reads that directory, imports and
// pulls what is in it at the start and whenever it changes, and writes one file, in which
// it remembers what it has done.
package imagesdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"knarr/internal/follow"
	"knarr/internal/run"
)

const (
	// settle is how long a file has to be left alone before it is taken.
	settle = time.Second
	// lookAgain is how often the directory is looked at without a notice of a change.
	lookAgain = time.Minute
	// retryFirst and retryMost are after what time pulls that failed are tried again, archiveMost
	// is that of archives, each of which is read as a whole.
	retryFirst, retryMost, archiveMost = 30 * time.Second, 10 * time.Minute, time.Hour
	// maxList and maxNames bound a list of names, maxFiles how many files are looked at.
	maxList, maxNames, maxFiles = 1 << 20, 1000, 1000
	// pullTime is the most that one pull may take. The runtime itself ends one that gets nothing
	// for minutes; this is for a registry that sends a little now and then.
	pullTime = time.Hour
)

// A Store holds the images of the node.
type Store interface {
	// LoadPinned imports an archive and gives the names of its images, which are not
	// collected while they are pinned by the directory; also those that it has pinned
	// when there is an error.
	LoadPinned(ctx context.Context, path string) ([]string, error)
	// PullPinned pins an image likewise, pulls it if it is not there, and gives its full name.
	PullPinned(ctx context.Context, name string) (string, error)
	// Unpin lets an image be collected, if only the directory has pinned it.
	Unpin(ctx context.Context, name string) error
	// Has says whether an image is there.
	Has(ctx context.Context, name string) (bool, error)
}

// Config says where things are.
type Config struct {
	// Dir is the directory. Required; it is made if it is not there.
	Dir string
	// Memory is the file that remembers what was done. Required.
	Memory string
	// Store has the images. Required.
	Store Store
	// Event tells users of the node what happened. Required.
	Event func(warning bool, reason, message string)
}

// A Directory is one that is followed.
type Directory struct {
	Config
	files map[string]record
}

// New reads and starts nothing.
func New(c Config) *Directory { return &Directory{Config: c} }

// Run follows the directory until ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	d.files = remembered(d.Memory)
	d.forgetMissing(ctx)
	for delay := settle; ctx.Err() == nil; delay = min(2*delay, lookAgain) {
		if err := d.follow(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "follow the directory of images", "dir", d.Dir, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
	return nil
}

// follow returns when the directory is another one.
func (d *Directory) follow(ctx context.Context) error {
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return err
	}
	at, err := os.Stat(d.Dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err = follow.File(ctx, filepath.Join(d.Dir, "any"), func() time.Duration {
		if now, err := os.Stat(d.Dir); err != nil || !os.SameFile(at, now) {
			cancel(errors.New("it was replaced"))
			return 0
		}
		again := lookAgain
		if err := run.Catch("images directory", func() (err error) {
			again, err = d.look(ctx)
			return err
		}); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "look at the directory of images", "dir", d.Dir, "err", err)
		}
		return again
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// look imports what is new and says when to look again.
func (d *Directory) look(ctx context.Context) (again time.Duration, err error) {
	found, err := list(d.Dir)
	if err != nil {
		return lookAgain, err
	}
	todo, gone, again := plan(found, d.files, time.Now())
	for _, name := range gone {
		d.release(ctx, d.files[name].Images, name)
		delete(d.files, name)
	}
	for _, lists := range []bool{false, true} { // registries may be slow, or away
		again = min(again, d.takeEach(ctx, todo, lists))
	}
	if len(todo)+len(gone) > 0 {
		if err := remember(d.Memory, d.files); err != nil {
			return again, fmt.Errorf("remember what was imported: %w", err)
		}
	}
	return again, nil
}

// takeEach takes the archives among files, or the lists, and says when to look again.
func (d *Directory) takeEach(ctx context.Context, files []file, lists bool) (again time.Duration) {
	again = lookAgain
	for _, f := range files {
		switch {
		case ctx.Err() != nil:
			return again
		case f.list() != lists:
			continue
		case inUse(filepath.Join(d.Dir, f.name)): // somebody writes into it
			again = min(again, settle)
			continue
		}
		d.take(ctx, f)
		if left := d.files[f.name].retry; left > 0 {
			again = min(again, left)
		}
	}
	return again
}

// takeArchives takes those that have come, or are due again, while a list is being pulled.
func (d *Directory) takeArchives(ctx context.Context) {
	found, err := list(d.Dir)
	if err != nil {
		return // the next look says so
	}
	todo, _, _ := plan(found, d.files, time.Now())
	d.takeEach(ctx, todo, false)
}

// take imports one file, or pulls what it names, and tells of it.
func (d *Directory) take(ctx context.Context, f file) {
	was := d.files[f.name]
	began := time.Now()
	images, err := d.fetch(ctx, f)
	if ctx.Err() != nil {
		return
	}
	next := record{Size: f.size, Modified: f.modified, Images: images}
	if err == nil {
		d.release(ctx, without(was.Images, images), f.name)
		slog.InfoContext(ctx, "imported images", "file", f.name, "images", strings.Join(images, ", "), "took", time.Since(began).Round(time.Millisecond))
		d.Event(false, "ImagesImported", fmt.Sprintf("Imported images of %s in %v: %s", f.name, time.Since(began).Round(time.Millisecond), strings.Join(images, ", ")))
		d.files[f.name] = next
		return
	}
	// What an earlier version of the file had stays pinned until this one can be had as a whole:
	// on a node without a registry nobody could get it again.
	next.Images = append(images, without(was.Images, images)...)
	next.failed = err.Error()
	most := archiveMost // which stay as they are: there may be more room then
	if f.list() {
		most = retryMost
	}
	next.retry = min(max(retryFirst, 2*was.retry), most)
	next.at = time.Now().Add(next.retry)
	if was.failed != next.failed {
		slog.WarnContext(ctx, "images of a file cannot be had", "file", f.name, "err", err)
		d.Event(true, "ImageImportFailed", fmt.Sprintf("Failed to import images of %s: %v", f.name, err))
	}
	d.files[f.name] = next
}

// fetch imports or pulls the images of a file: of a list, those that can be had.
func (d *Directory) fetch(ctx context.Context, f file) (images []string, err error) {
	path := filepath.Join(d.Dir, f.name)
	if !f.list() {
		return d.Store.LoadPinned(ctx, path)
	}
	names, err := readNames(path)
	if err != nil {
		return nil, err
	}
	var errs []error
	var looked time.Time
	under := d.files[f.name] // what is pulled so far is this file's, also for an archive that is taken in between
	under.Images = slices.Clone(under.Images)
	for _, name := range names {
		if time.Since(looked) >= settle { // images that are there take no time, and there may be a thousand
			d.takeArchives(ctx)
			looked = time.Now()
		}
		full, err := d.pull(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("pull %s: %w", name, err))
			continue
		}
		images = append(images, full)
		under.Images = append(under.Images, full)
		d.files[f.name] = under
	}
	return images, errors.Join(errs...)
}

// pull pulls one image within its time.
func (d *Directory) pull(ctx context.Context, name string) (full string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pullTime)
	defer cancel()
	return d.Store.PullPinned(ctx, name)
}

// without are the names that are not among others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(others, n) })
}

// release lets images be collected that no other file has.
func (d *Directory) release(ctx context.Context, images []string, except string) {
	for _, image := range images {
		if d.has(image, except) {
			continue
		}
		if err := d.Store.Unpin(ctx, image); err != nil {
			slog.WarnContext(ctx, "let an image be collected", "image", image, "err", err)
		}
	}
}

func (d *Directory) has(image, except string) bool {
	for name, r := range d.files {
		if name != except && slices.Contains(r.Images, image) {
			return true
		}
	}
	return false
}

// forgetMissing forgets what was done with files of which an image is there no more, so
// that it is done again.
func (d *Directory) forgetMissing(ctx context.Context) {
	for name, r := range d.files {
		for _, image := range r.Images {
			if there, err := d.Store.Has(ctx, image); err == nil && !there {
				r.Size = -1
				d.files[name] = r
			}
		}
	}
}

// readNames are the images that a list names, one a line. What follows a # is a comment.
func readNames(path string) (names []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxList+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxList:
		return nil, fmt.Errorf("it is larger than %d bytes", maxList)
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			names = append(names, line)
		}
	}
	if len(names) > maxNames {
		return nil, fmt.Errorf("it names %d images; at most %d are pulled", len(names), maxNames)
	}
	return names, nil
}

// list are the files of the directory that have images.
func list(dir string) (files []file, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		st, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) { // it has just gone
			continue
		}
		if err == nil && wanted(name) && st.Mode().IsRegular() {
			files = append(files, file{name, st.Size(), st.ModTime()})
		}
	}
	return files, nil
}
