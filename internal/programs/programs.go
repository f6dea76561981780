// Package programs holds the programs the node runs besides itself. It reads
// them, compressed, from this binary and writes them to a directory when they
// are first needed.
package programs

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/klauspost/compress/zstd"
)

// Names of the programs a full build embeds.
const (
	Shim    = "knarr-shim"
	Verb    = "knarr-shim-verb"
	Kubectl = "kubectl"
	CNI     = "knarr-cni"
	Holder  = "knarr-holder"
	Kine    = "knarr-kine"
	Pause   = "pause"
	// Definitions are no program, but those of the Gateway API's kinds.
	Definitions = "gateway-definitions"
)

// ErrMissing says that this binary was built without the program.
var ErrMissing = errors.New("not embedded in this build; build it with make")

//go:embed all:bin
var embedded embed.FS

// Unpack makes the named program available in dir and gives its path. A file
// that is already there is kept if it is known to be the embedded one.
func Unpack(dir, name string) (string, error) {
	return unpack(files(), dir, name)
}

// Remove removes the named program from dir, and what was noted of it there.
func Remove(dir, name string) error {
	path := filepath.Join(dir, name)
	var errs []error
	for _, file := range []string{path, receiptPath(path)} {
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Read gives the bytes of the named program.
func Read(name string) ([]byte, error) {
	p, err := load(files(), name)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := p.write(&b); err != nil {
		return nil, fmt.Errorf("program %s: %w", name, err)
	}
	return b.Bytes(), nil
}

func files() fs.FS {
	bin, err := fs.Sub(embedded, "bin")
	if err != nil {
		panic(err) // the path is a constant
	}
	return bin
}

// unpacking has a lock for each path, so that two callers in this process do
// not both write the same 50 MB; between processes the rename keeps them apart.
var unpacking sync.Map

func unpack(from fs.FS, dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	lock, _ := unpacking.LoadOrStore(path, &sync.Mutex{})
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	p, err := load(from, name)
	if err != nil {
		return "", fmt.Errorf("program %s: %w", name, err)
	}
	if p.present(path) {
		return path, nil
	}
	if err := p.install(path); err != nil {
		return "", fmt.Errorf("unpack %s: %w", path, err)
	}
	return path, nil
}

// program is one embedded program: its compressed bytes and what they unpack to.
type program struct {
	packed []byte
	digest string
	size   int64
}

func load(from fs.FS, name string) (*program, error) {
	note, err := fs.ReadFile(from, name+".sha256")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	} else if err != nil {
		return nil, err
	}
	p := &program{}
	if _, err := fmt.Sscan(string(note), &p.digest, &p.size); err != nil {
		return nil, fmt.Errorf("digest: %w", err)
	}
	if p.packed, err = fs.ReadFile(from, name+".zst"); err != nil {
		return nil, err
	}
	return p, nil
}

// present reports whether path is the program. Its receipt says which file was
// found good and when that was last written; only a file that has changed
// since is hashed again.
func (p *program) present(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != p.size || info.Mode().Perm() != 0o755 {
		return false
	}
	receipt := p.receipt(info)
	if old, err := os.ReadFile(receiptPath(path)); err == nil && string(old) == receipt {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil || hex.EncodeToString(h.Sum(nil)) != p.digest {
		return false
	}
	// Without a receipt the next start hashes again, nothing worse.
	_ = os.WriteFile(receiptPath(path), []byte(receipt), 0o644)
	return true
}

// install writes the program beside path and renames it into place, so that a
// crash leaves no partial file and a running program keeps its old one.
func (p *program) install(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := p.write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o755); err != nil {
		return err
	}
	// Not synced: on a busy disk that takes seconds of a start. A power cut may
	// damage the file, so its receipt holds for this boot only. Closed before it
	// gets its name: executing a file open for writing fails.
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	return os.WriteFile(receiptPath(path), []byte(p.receipt(info)), 0o644)
}

// write unpacks the program into w and verifies it.
func (p *program) write(w io.Writer) error {
	r, err := zstd.NewReader(bytes.NewReader(p.packed), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, h), r)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != p.digest || n != p.size {
		return fmt.Errorf("embedded copy is damaged: digest %s, want %s", got, p.digest)
	}
	return nil
}

func (p *program) receipt(info os.FileInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %d %s", p.digest, info.Size(), info.ModTime().UnixNano(), boot())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		fmt.Fprintf(&b, " %d %d.%09d", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return b.String()
}

// boot names this boot of the machine.
var boot = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})

func receiptPath(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".sha256")
}
