package kine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/storagetest"
	"knarr/controlplane/kine"
	"knarr/internal/need"
	"knarr/internal/programs"
)

var scratch string // for all tests of this process

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "knarr-kine-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// program is the one of this build, made if it has none.
var program = sync.OnceValues(func() (string, error) {
	path, err := programs.Unpack(scratch, programs.Kine)
	if !errors.Is(err, programs.ErrMissing) {
		return path, err
	}
	path = filepath.Join(scratch, programs.Kine)
	cmd := exec.Command("go", "build", "-C", "program", "-trimpath", "-tags", "netgo osusergo sqlite_omit_load_extension", "-gcflags=all=-l", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-Os", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func open(t *testing.T, endpoint string) *kine.Client {
	t.Helper()
	c, err := start(t, endpoint, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func start(t *testing.T, endpoint string, retain int64) (*kine.Client, error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	e, err := kine.ParseEndpoint(endpoint, filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	return kine.Start(t.Context(), kine.Config{Program: path, Endpoint: e, Retain: retain, StartTimeout: 3 * time.Second})
}

func TestSQLite(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store { return storage.NewEmbedded(open(t, "sqlite://")) })
}

func TestPostgreSQL(t *testing.T) {
	s := postgres(t)
	storagetest.Run(t, func(t *testing.T) storage.Store { return storage.NewEmbedded(open(t, s.fresh())) })
}

func TestMySQL(t *testing.T) {
	s := mysql(t)
	storagetest.Run(t, func(t *testing.T) storage.Store { return storage.NewEmbedded(open(t, s.fresh())) })
}

// TestRefused: what another try does not change is said at once, and nobody is
// waited for without end; no password is in what is said.
func TestRefused(t *testing.T) {
	nobody := free(t)
	for name, c := range map[string]struct {
		endpoint func(*testing.T) string
		want     string
	}{
		"postgres: wrong password": {func(t *testing.T) string {
			return strings.Replace(postgres(t).fresh(), password, "wr0ng-"+password, 1)
		}, "password authentication failed for user"},
		"postgres: nobody there": {func(*testing.T) string { return "postgres://knarr:" + password + "@127.0.0.1:" + nobody + "/k" }, "no answer in 3s: failed to connect"},
		"mysql: wrong password": {func(t *testing.T) string {
			return strings.Replace(mysql(t).fresh(), password, "wr0ng-"+password, 1)
		}, "Error 1045 (28000): Access denied for user"},
		"mysql: nobody there": {func(*testing.T) string { return "mysql://knarr:" + password + "@tcp(127.0.0.1:" + nobody + ")/k" }, "no answer in 3s: dial tcp"},
		"sqlite: no database": {func(*testing.T) string { return "sqlite:///proc/version" }, "open sqlite:///proc/version: "},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := start(t, c.endpoint(t), 1)
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want %q in it", err, c.want)
			}
		})
	}
}

// TestCreatedAnew: a key that was deleted has the revision of its own creation,
// whatever else is written meanwhile.
func TestCreatedAnew(t *testing.T) {
	s := storage.NewEmbedded(open(t, "sqlite://"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			key := fmt.Sprintf("/w/%d", w)
			for n := range 20 {
				rev, _, ok, err := s.Put(ctx, key, fmt.Append(nil, n), 0, 0)
				if err != nil || !ok {
					t.Errorf("create: %v, %v", ok, err)
					return
				}
				if _, current, ok, err := s.Delete(ctx, key, rev); err != nil || !ok {
					t.Errorf("delete at %d: %+v, %v", rev, current, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestTTL: what is put for a time vanishes after it, and its watchers hear so.
func TestTTL(t *testing.T) {
	s := storage.NewEmbedded(open(t, "sqlite://"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rev, _, ok, err := s.Put(ctx, "/e", []byte("v"), 0, time.Second)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	batches, err := s.Watch(ctx, "/e", rev)
	if err != nil {
		t.Fatal(err)
	}
	for b := range batches {
		if b.Err != nil {
			t.Fatal(b.Err)
		}
		for _, e := range b.Events {
			if e.Key == "/e" && e.Deleted {
				return
			}
		}
	}
	t.Error("it never went")
}

// TestTooLarge: a value over the limit is refused in the store's own words.
func TestTooLarge(t *testing.T) {
	s := storage.NewEmbedded(open(t, "sqlite://"))
	if _, _, _, err := s.Put(t.Context(), "/l", make([]byte, 4<<20), 0, 0); !errors.Is(err, storage.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, _, ok, err := s.Put(t.Context(), "/l", make([]byte, 2<<20), 0, 0); err != nil || !ok {
		t.Errorf("2 MB: %v, %v", ok, err)
	}
}

// sql is a database server of this test's own.
type sql struct {
	address, params string // with a user before, and a database after
	made            int
}

// fresh is a database that is not there yet.
func (s *sql) fresh() string {
	s.made++
	return s.database(fmt.Sprintf("k%d", s.made))
}

func (s *sql) database(name string) string { return s.address + name + s.params }

const password = "s3cr3t-of-the-test"

func postgres(t *testing.T) *sql {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		t.Skip("no PostgreSQL here; apt-get install postgresql")
	}
	bin := filepath.Dir(found[len(found)-1])
	dir, as := unprivileged(t, "postgres")
	secret := filepath.Join(dir, "pw")
	if err := os.WriteFile(secret, []byte(password), 0o644); err != nil {
		t.Fatal(err)
	}
	data, port := filepath.Join(dir, "data"), free(t)
	command(t, as, filepath.Join(bin, "initdb"), "-D", data, "-U", "knarr", "-A", "scram-sha-256", "--pwfile", secret, "--no-sync", "-E", "UTF8", "--locale", "C")
	serve(t, as, port, nil, filepath.Join(bin, "postgres"), "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	return &sql{address: "postgres://knarr:" + password + "@127.0.0.1:" + port + "/", params: "?sslmode=disable"}
}

func mysql(t *testing.T) *sql {
	install, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		t.Skip("no MariaDB here; apt-get install mariadb-server")
	}
	dir, as := unprivileged(t, "mysql")
	data, port, begin := filepath.Join(dir, "data"), free(t), filepath.Join(dir, "begin.sql")
	if err := os.WriteFile(begin, []byte("CREATE USER knarr@'%' IDENTIFIED BY '"+password+"';\nGRANT ALL ON *.* TO knarr@'%';\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, as, install, "--no-defaults", "--datadir="+data, "--skip-test-db", "--auth-root-authentication-method=normal")
	server, err := exec.LookPath("mariadbd")
	if err != nil {
		server = "/usr/sbin/mariadbd"
	}
	serve(t, as, port, make([]byte, 1), server, "--no-defaults", "--datadir="+data, "--socket="+filepath.Join(dir, "s"), "--bind-address=127.0.0.1", "--port="+port, "--skip-name-resolve", "--init-file="+begin)
	return &sql{address: "mysql://knarr:" + password + "@tcp(127.0.0.1:" + port + ")/"}
}

// unprivileged is a directory of a user that database servers agree to run as.
func unprivileged(t *testing.T, name string) (dir string, as *syscall.SysProcAttr) {
	t.Helper()
	dir, err := os.MkdirTemp("", "knarr-"+name+"-") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Geteuid() != 0 {
		return dir, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		need.Skip(t, "needs the user "+name+": useradd --system "+name)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

func command(t *testing.T, as *syscall.SysProcAttr, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.SysProcAttr, cmd.Dir = as, "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// serve runs a server until the test is over, and waits for it to listen on port
// and to greet who connects with so many bytes: a busy machine takes longer to
// start one than our own program waits.
func serve(t *testing.T, as *syscall.SysProcAttr, port string, greeting []byte, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr, cmd.Dir = as, "/"
	var output strings.Builder
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(time.Minute); ; {
		if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = io.ReadFull(c, greeting)
			c.Close()
			if err == nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s does not listen on port %s", name, port)
		}
	}
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
