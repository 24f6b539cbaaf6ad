package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"
	oci "github.com/moby/docker-image-spec/specs-go/v1"
	spec "github.com/opencontainers/image-spec/specs-go/v1"
)

// fake is an engine that answers on a unix socket what a test has put into it.
type fake struct {
	t    testing.TB
	path string

	mu         sync.Mutex // guards all below
	version    types.Version
	info       system.Info
	containers map[string]*container.InspectResponse
	images     map[string]map[string]string // labels
	volumes    map[string]volume.Volume
	networks   map[string]*network.Inspect
	ring       []events.Message // as an engine keeps them
	streams    map[chan events.Message]bool
	asked      map[string]int // requests by method and path without its version
	server     *http.Server

	// removeNetwork and createNetwork are asked before the fake does its work.
	removeNetwork func() (status int, message string)
	createNetwork func(network.CreateRequest) (status int, message string)
}

// newFake starts an engine like 20.10, and returns it with a client.
func newFake(t testing.TB) (*fake, *Client) {
	f := &fake{
		t: t, path: filepath.Join(t.TempDir(), "docker.sock"),
		version: types.Version{Version: "20.10.24+dfsg1", APIVersion: "1.41"},
		info: system.Info{
			OSType: "linux", KernelVersion: kernelRelease(), DefaultRuntime: "runc",
			SecurityOptions: []string{"name=apparmor", "name=seccomp,profile=default"},
			Runtimes: map[string]system.RuntimeWithStatus{
				"runc":                  {Runtime: system.Runtime{Path: "runc"}},
				"io.containerd.runc.v2": {Runtime: system.Runtime{Path: "runc"}},
				"sandboxed":             {Runtime: system.Runtime{Path: "/usr/local/bin/runsc"}},
				"kata":                  {Runtime: system.Runtime{Type: "io.containerd.kata.v2"}},
				"nvidia":                {Runtime: system.Runtime{Path: "/usr/bin/nvidia-container-runtime"}},
			},
		},
		containers: map[string]*container.InspectResponse{},
		images:     map[string]map[string]string{},
		volumes:    map[string]volume.Volume{},
		networks:   map[string]*network.Inspect{},
		streams:    map[chan events.Message]bool{},
		asked:      map[string]int{},
	}
	f.listen()
	t.Cleanup(f.stop)
	c, err := Dial("unix://" + f.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return f, c
}

func (f *fake) listen() {
	l, err := net.Listen("unix", f.path)
	if err != nil {
		f.t.Error(err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server = &http.Server{Handler: f}
	go f.server.Serve(l)
}

// stop ends the engine: its streams and every connection.
func (f *fake) stop() {
	f.mu.Lock()
	server := f.server
	f.mu.Unlock()
	server.Close()
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	f.mu.Lock()
	f.asked[r.Method+" "+path]++
	if parts[0] == "events" {
		f.mu.Unlock()
		f.stream(w, r)
		return
	}
	status, answer := f.answer(r, path, parts)
	f.mu.Unlock()
	w.WriteHeader(status)
	if answer != nil {
		json.NewEncoder(w).Encode(answer)
	}
}

func problem(status int, message string) (int, any) {
	return status, map[string]string{"message": message}
}

func (f *fake) answer(r *http.Request, path string, parts []string) (int, any) {
	last := parts[len(parts)-1]
	switch {
	case path == "/_ping":
		return http.StatusOK, nil
	case path == "/version":
		return http.StatusOK, f.version
	case path == "/info":
		return http.StatusOK, f.info
	case path == "/containers/json":
		return http.StatusOK, f.list(r)
	case parts[0] == "containers" && last == "json":
		for _, c := range f.containers {
			if c.ID == parts[1] || c.Name == "/"+parts[1] {
				return http.StatusOK, c
			}
		}
		return problem(http.StatusNotFound, "No such container: "+parts[1])
	case parts[0] == "containers" && last == "pause":
		c := f.containers[parts[1]]
		if c.State.Status != "running" {
			return problem(http.StatusConflict, "Container "+c.ID+" is "+c.State.Status)
		}
		c.State.Status, c.State.Paused = "paused", true
		return http.StatusNoContent, nil
	case parts[0] == "images":
		labels, ok := f.images[parts[1]]
		if !ok {
			return problem(http.StatusNotFound, "No such image: "+parts[1])
		}
		config := &oci.DockerOCIImageConfig{ImageConfig: spec.ImageConfig{Labels: labels}}
		return http.StatusOK, image.InspectResponse{ID: parts[1], Config: config}
	case parts[0] == "volumes":
		return http.StatusOK, f.volumes[parts[1]]
	case path == "/networks/create":
		return f.create(r)
	case parts[0] == "networks":
		return f.network(r, parts)
	}
	return problem(http.StatusNotImplemented, r.Method+" "+path)
}

func (f *fake) list(r *http.Request) []container.Summary {
	var filter map[string]map[string]bool
	json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filter)
	list := []container.Summary{}
	for _, c := range f.containers {
		on := func(n *network.EndpointSettings) bool { return filter["network"][n.NetworkID] }
		networks := c.NetworkSettings.Networks
		if filter["network"] != nil && !slices.ContainsFunc(slices.Collect(maps.Values(networks)), on) {
			continue
		}
		if !c.State.Running && r.URL.Query().Get("all") != "1" {
			continue
		}
		list = append(list, container.Summary{ID: c.ID, Names: []string{"/web/alias", c.Name}, Labels: c.Config.Labels,
			State: container.ContainerState(c.State.Status), NetworkSettings: &container.NetworkSettingsSummary{Networks: networks}})
	}
	return list
}

func (f *fake) network(r *http.Request, parts []string) (int, any) {
	if len(parts) == 1 {
		var filter map[string]map[string]bool
		json.Unmarshal([]byte(r.URL.Query().Get("filters")), &filter)
		list := []network.Inspect{}
		for _, n := range f.networks {
			managed := filter["label"]["sluice.managed=true"]
			if !managed || n.Labels[LabelManaged] == "true" {
				list = append(list, *n)
			}
		}
		return http.StatusOK, list
	}
	var found *network.Inspect
	for _, n := range f.networks {
		if n.ID == parts[1] || n.Name == parts[1] {
			found = n
		}
	}
	switch {
	case found == nil:
		return problem(http.StatusNotFound, "network "+parts[1]+" not found")
	case r.Method == http.MethodDelete:
		if f.removeNetwork != nil {
			if status, message := f.removeNetwork(); status != 0 {
				return problem(status, message)
			}
		}
		if len(found.Containers) > 0 {
			return problem(http.StatusForbidden, "error while removing network: network "+found.Name+" id "+found.ID+" has active endpoints")
		}
		delete(f.networks, found.ID)
		return http.StatusNoContent, nil
	case len(parts) == 3 && parts[2] == "disconnect":
		var o network.DisconnectOptions
		json.NewDecoder(r.Body).Decode(&o)
		for id, e := range found.Containers {
			if o.Container == e.Name || o.Container == id && !strings.HasPrefix(id, "ep-") {
				delete(found.Containers, id)
				return http.StatusOK, nil
			}
		}
		return problem(http.StatusNotFound, "No such container: "+o.Container)
	}
	return http.StatusOK, found
}

func (f *fake) create(r *http.Request) (int, any) {
	var o network.CreateRequest
	json.NewDecoder(r.Body).Decode(&o)
	if f.createNetwork != nil {
		if status, message := f.createNetwork(o); status != 0 {
			return problem(status, message)
		}
	}
	id := fmt.Sprintf("%012d", len(f.networks)+1)
	f.networks[id] = &network.Inspect{ID: id, Name: o.Name, Driver: o.Driver, Internal: o.Internal, EnableIPv6: *o.EnableIPv6,
		IPAM: *o.IPAM, Options: o.Options, Labels: o.Labels}
	return http.StatusCreated, network.CreateResponse{ID: id}
}

// ringLength is what an engine keeps of its events.
const ringLength = 256

// publish tells of an event, as an engine does: whoever listens gets it, and those who come later and ask.
func (f *fake) publish(kind events.Type, action events.Action, actor string, attributes map[string]string) {
	m := events.Message{Type: kind, Action: action, Actor: events.Actor{ID: actor, Attributes: attributes},
		Time: time.Now().Unix(), TimeNano: time.Now().UnixNano()}
	f.ring = append(f.ring, m)
	f.ring = f.ring[max(0, len(f.ring)-ringLength):]
	for s := range f.streams {
		s <- m
	}
}

func (f *fake) stream(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.ParseInt(r.URL.Query().Get("since"), 10, 64)
	if err != nil {
		http.Error(w, "since: "+err.Error(), http.StatusBadRequest)
		return
	}
	w.(http.Flusher).Flush()
	c := make(chan events.Message, 4*ringLength)
	f.mu.Lock()
	for _, m := range f.ring {
		if m.TimeNano >= time.Unix(seconds, 0).UnixNano() {
			c <- m
		}
	}
	f.streams[c] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.streams, c)
		f.mu.Unlock()
	}()
	for {
		select {
		case m := <-c:
			if json.NewEncoder(w).Encode(m) != nil {
				return
			}
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// bridge puts a network into the engine.
func (f *fake) bridge(id, name string, change func(*network.Inspect)) {
	n := &network.Inspect{ID: id, Name: name, Driver: "bridge",
		IPAM: network.IPAM{Config: []network.IPAMConfig{{Subnet: "172.18.0.0/16", Gateway: "172.18.0.1"}}}}
	if change != nil {
		change(n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.networks[id] = n
}

// run puts a container into the engine, running on a network that is there.
func (f *fake) run(id, name string, change func(*container.InspectResponse)) {
	c := &container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: id, Name: "/" + name, Image: "sha256:1",
			State:      &container.State{Status: "running", Running: true, Pid: 4711, StartedAt: "2024-05-06T07:08:09.123456789Z"},
			HostConfig: &container.HostConfig{NetworkMode: "net", Runtime: "runc"},
		},
		Config: &container.Config{Hostname: id, Labels: map[string]string{}},
		NetworkSettings: &container.NetworkSettings{
			Networks: map[string]*network.EndpointSettings{"net": {NetworkID: "n1", IPAddress: "172.18.0.2", IPPrefixLen: 16,
				MacAddress: "02:42:ac:12:00:02", Aliases: []string{"alias-" + name}}},
		},
	}
	c.NetworkSettings.SandboxID, c.NetworkSettings.SandboxKey = "s-"+id, "/run/docker/netns/"+id
	if change != nil {
		change(c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id] = c
}

// count returns how often a request has come.
func (f *fake) count(request string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[request]
}
