// Package durability kills a server with no warning while it is written to, and
// checks that every write it acknowledged is there when it comes back. It writes
// to temporary directories and runs this test's own binary as the server.
package durability

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/etcd"
	"knarr/controlplane/kine"
	"knarr/internal/programs"
)

const (
	dirVariable    = "KNARR_DURABILITY_DIR"    // set for the server only
	roundsVariable = "KNARR_DURABILITY_ROUNDS" // default 10
	// datastoreVariable is what --datastore-endpoint takes of a SQL database, which
	// must be empty. Its program is killed as well. Default: the embedded etcd.
	datastoreVariable = "KNARR_DURABILITY_DATASTORE"
	token             = "durability"
	writers           = 8
)

// kinds are what the writers write, each another one. A number stands where only
// one way of writing goes, in a status for one.
var kinds = []struct{ path, body, update, status string }{
	{"/api/v1/namespaces/default/configmaps", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"labels":{"set":%[1]q}},"data":{"n":"%d"}}`, http.MethodPut, ""},
	{"/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":%q,"labels":{"set":%[1]q}},"spec":{"leaseTransitions":%d}}`, http.MethodPatch, ""},
	{"/api/v1/namespaces/default/resourcequotas", `{"kind":"ResourceQuota","apiVersion":"v1","metadata":{"name":%q,"labels":{"set":%[1]q}},"status":{"hard":{"pods":"%d"}}}`, http.MethodPut, "/status"},
}

// bare is the value of an object whose status was never written.
const bare = -1

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirVariable); dir != "" {
		if err := server(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// server is an API server on its own etcd; it tells its address and runs until
// it is killed, or its parent is gone.
func server(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	store, err := open(ctx, dir)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	api, err := apiserver.New(apiserver.Config{
		Store: store, ServiceAccountKey: key,
		Tokens: map[string]user.Info{token: &user.DefaultInfo{Name: "t", Groups: []string{user.SystemPrivilegedGroup}}},
	})
	if err != nil {
		return err
	}
	go func() { _ = api.Run(ctx) }()
	<-api.Started()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return api.Serve(ctx, l, nil)
}

// open opens the datastore.
func open(ctx context.Context, dir string) (storage.Store, error) {
	address := os.Getenv(datastoreVariable)
	if address == "" {
		member, err := etcd.Start(ctx, etcd.Config{Dir: dir})
		if err != nil {
			return nil, err
		}
		go func() { _ = member.Run(ctx) }()
		return storage.NewEtcd(member.Client()), nil
	}
	endpoint, err := kine.ParseEndpoint(address, filepath.Join(dir, "state.db"))
	if err != nil {
		return nil, err
	}
	program, err := programs.Unpack(dir, programs.Kine)
	if err != nil {
		return nil, err
	}
	client, err := kine.Start(ctx, kine.Config{Program: program, Endpoint: endpoint})
	if err != nil {
		return nil, err
	}
	go func() { _ = client.Run(ctx) }()
	return storage.NewEmbedded(client), nil
}

// child is a running server.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func start(t *testing.T, dir string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), dirVariable+"="+dir)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // its end tells the server that we are gone
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v, %v", err, cmd.Wait())
	}
	return &child{cmd, strings.TrimSpace(addr)}
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// killDatastore kills the datastore's program alone.
func (c *child) killDatastore(t *testing.T) {
	t.Helper()
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.cmd.Process.Pid))
	killed := 0
	for _, list := range lists {
		b, _ := os.ReadFile(list)
		for _, id := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(id); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed == 0 {
		t.Error("the datastore's program was not found")
	}
}

func (c *child) do(client *http.Client, method, path, body string) (int, []byte) {
	req, err := http.NewRequest(method, "http://"+c.addr+path, strings.NewReader(body))
	if err != nil {
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	switch {
	case strings.Contains(path, "fieldManager="):
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
	case method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, b
}

// known is what one writer was told about one of its objects. maybe says that
// the last write was never answered.
type known struct {
	value int // 0 is: gone
	next  int
	maybe bool
	would int // what the unanswered write would have made of it
}

func TestAcknowledgedWritesSurviveKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers")
	}
	rounds := 10
	if n, err := strconv.Atoi(os.Getenv(roundsVariable)); err == nil {
		rounds = n
	}
	dir := t.TempDir()
	var state [writers]map[string]*known
	for i := range state {
		state[i] = map[string]*known{}
	}
	acknowledged, checked := 0, 0
	var slowest time.Duration // from the start of a server to its first answer
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: writers}}
	for round := range rounds {
		began := time.Now()
		c := start(t, dir)
		checked += check(t, c, client, &state)
		slowest = max(slowest, time.Since(began))
		var wg sync.WaitGroup
		var counts [writers]int
		for i := range writers {
			wg.Go(func() { counts[i] = write(t, c, client, i, round, state[i]) })
		}
		// From the first moments to well into the load.
		<-time.After(time.Duration(20+mathrand.IntN(400)) * time.Millisecond)
		if os.Getenv(datastoreVariable) != "" && round%2 == 1 {
			c.killDatastore(t) // and the server goes on
			<-time.After(time.Duration(500+mathrand.IntN(400)) * time.Millisecond)
		}
		c.kill()
		wg.Wait()
		for _, n := range counts {
			acknowledged += n
		}
		client.CloseIdleConnections()
	}
	c := start(t, dir)
	checked += check(t, c, client, &state)
	c.kill()
	if acknowledged == 0 {
		t.Fatal("nothing was written")
	}
	t.Logf("%d kills, %d acknowledged writes, %d objects compared, none lost, slowest return %s", rounds, acknowledged, checked, slowest.Round(time.Millisecond))
}

// write creates, updates, patches, applies and deletes, by name and by label, until
// the server is gone, and counts what was acknowledged.
func write(t *testing.T, c *child, client *http.Client, writer, round int, state map[string]*known) (acknowledged int) {
	for n := 0; ; n++ {
		name := fmt.Sprintf("w%d-%d", writer, (round*7+n)%50)
		k := state[name]
		if k == nil {
			k = &known{}
			state[name] = k
		}
		k.next++
		kind := kinds[writer%len(kinds)]
		body := fmt.Sprintf(kind.body, name, k.next)
		method, path, value, want := kind.update, kind.path+"/"+name+kind.status, k.next, http.StatusOK
		switch {
		case k.value == 0:
			method, path, want = http.MethodPost, kind.path, http.StatusCreated
			if kind.status != "" {
				value = bare
			}
		case k.next%10 == 0:
			method, path, body, value = http.MethodDelete, kind.path+"?labelSelector=set%3D"+name, "", 0
		case k.next%5 == 0:
			method, path, body, value = http.MethodDelete, kind.path+"/"+name, "", 0
		case k.next%4 == 0:
			method, path = http.MethodPatch, path+"?fieldManager=durability&force=true"
		case k.next%3 == 0:
			method = http.MethodPatch
		}
		code, _ := c.do(client, method, path, body)
		if code != want {
			if code != 0 && (os.Getenv(datastoreVariable) == "" || code < http.StatusInternalServerError) {
				t.Errorf("%s %s: %d", method, path, code)
			}
			k.maybe, k.would = true, value
			return acknowledged
		}
		k.value = value
		acknowledged++
	}
}

// check compares what is stored with what was acknowledged. A write that was
// never answered may have happened or not; nothing else may.
func check(t *testing.T, c *child, client *http.Client, state *[writers]map[string]*known) (compared int) {
	t.Helper()
	stored := map[string]int{}
	for _, kind := range kinds {
		code, body := c.do(client, http.MethodGet, kind.path, "")
		if code != http.StatusOK {
			t.Fatalf("list: %d %s", code, body)
		}
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Data     struct{ N string }
				Spec     struct{ LeaseTransitions int }
				Status   struct{ Hard struct{ Pods string } }
			}
		}
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			n, err := strconv.Atoi(o.Data.N + o.Status.Hard.Pods)
			if err != nil {
				n = bare
			}
			if o.Spec.LeaseTransitions > 0 {
				n = o.Spec.LeaseTransitions
			}
			stored[o.Metadata.Name] = n
		}
	}
	for _, of := range state {
		for name, k := range of {
			got := stored[name]
			delete(stored, name)
			compared++
			if got != k.value && !(k.maybe && got == k.would) {
				t.Errorf("%s: stored %d, acknowledged %d", name, got, k.value)
			}
			k.value, k.maybe = got, false
		}
	}
	for name, value := range stored {
		if strings.HasPrefix(name, "w") {
			t.Errorf("%s: %d was deleted, or never written", name, value)
		}
	}
	return compared
}
