package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// fakeModal is Modal's control plane and the router of one task, as far as this program uses them.
type fakeModal struct {
	pb.UnimplementedModalClientServer
	shared
	url             string
	secret, sandbox string
}

// shared is what was set.
type shared struct {
	// deny is what setting the lists answers.
	deny              error
	task              string
	domains, networks []string
	calls             int
}

func token() string {
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(time.Hour).Unix()))
	return "e30." + claims + ".e30"
}

func (f *fakeModal) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: token()}.Build(), nil
}

// Sandboxes of Modal's former and of its newer kind have ids of different forms, and calls of their own.
const (
	former = "sb-0123456789abcdefghijAB"
	newer  = "sb-1"
)

func (f *fakeModal) SandboxGetTaskIdV2(ctx context.Context, r *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	return f.SandboxGetTaskId(ctx, r)
}

func (f *fakeModal) SandboxGetCommandRouterAccess(context.Context, *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: token(), Url: f.url}.Build(), nil
}

func (f *fakeModal) SandboxGetTaskId(ctx context.Context, r *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	f.secret, f.sandbox = strings.Join(md.Get("x-modal-token-secret"), ""), r.GetSandboxId()
	if f.sandbox != former && f.sandbox != newer {
		return nil, status.Error(codes.NotFound, "no such sandbox; the token was "+f.secret)
	}
	task := "ta-1"
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &task}.Build(), nil
}

func (f *fakeModal) TaskGetCommandRouterAccess(context.Context, *pb.TaskGetCommandRouterAccessRequest) (*pb.TaskGetCommandRouterAccessResponse, error) {
	return pb.TaskGetCommandRouterAccessResponse_builder{Jwt: token(), Url: f.url}.Build(), nil
}

// router is the other interface of the same: both have a method of one name.
type router struct {
	pb.UnimplementedTaskCommandRouterServer
	*shared
}

func (f router) TaskSetNetworkAccess(_ context.Context, r *pb.TaskSetNetworkAccessRequest) (*pb.TaskSetNetworkAccessResponse, error) {
	f.calls++
	if f.deny != nil {
		return nil, f.deny
	}
	f.task, f.domains, f.networks = r.GetTaskId(), r.GetNetworkAccess().GetAllowedDomains(), r.GetNetworkAccess().GetAllowedCidrs()
	return &pb.TaskSetNetworkAccessResponse{}, nil
}

// start serves f on a loopback address and points the environment at it.
func start(t *testing.T, f *fakeModal) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterModalClientServer(s, f)
	pb.RegisterTaskCommandRouterServer(s, router{shared: &f.shared})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	f.url = "https://" + l.Addr().String()
	t.Setenv("MODAL_SERVER_URL", "http://"+l.Addr().String())
	t.Setenv("MODAL_TOKEN_ID", "ak-1")
	t.Setenv("MODAL_TOKEN_SECRET", "as-secret")
	t.Setenv("MODAL_CONFIG_PATH", "")
}

func TestApply(t *testing.T) {
	for _, row := range []struct {
		name, sandbox, in string
		domains, networks []string
	}{
		{"former", former, `{"outbound_domain_allowlist": ["a.test", "*.b.test"], "outbound_cidr_allowlist": ["192.0.2.1/32"]}`, []string{"a.test", "*.b.test"}, []string{"192.0.2.1/32"}},
		{"newer", newer, `{"outbound_domain_allowlist": [], "outbound_cidr_allowlist": []}`, nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := &fakeModal{shared: shared{domains: []string{"before"}, networks: []string{"before"}}}
			start(t, f)
			var complaints bytes.Buffer
			if code := run(t.Context(), []string{row.sandbox}, strings.NewReader(row.in), &complaints); code != 0 {
				t.Fatalf("code %d: %s", code, &complaints)
			}
			if f.task != "ta-1" || f.sandbox != row.sandbox || f.secret != "as-secret" || f.calls != 1 ||
				!slices.Equal(f.domains, row.domains) || !slices.Equal(f.networks, row.networks) {
				t.Errorf("Modal got %q %q %q, %d calls, %q, %q", f.task, f.sandbox, f.secret, f.calls, f.domains, f.networks)
			}
		})
	}
}

func TestFails(t *testing.T) {
	const lists = `{"outbound_domain_allowlist": [], "outbound_cidr_allowlist": []}`
	for _, row := range []struct {
		name, sandbox, in string
		deny              error
		env               [2]string
		want              string
	}{
		{"unknown", "sb-2", lists, nil, [2]string{}, "no such sandbox; the token was xxxxx"},
		{"lacks-the-call", "sb-1", lists, status.Error(codes.Unimplemented, "unknown method"), [2]string{}, "Modal lacks the call that changes the network of a running sandbox: upgrade its SDK, then try one task"},
		{"denied", "sb-1", lists, status.Error(codes.PermissionDenied, "no"), [2]string{}, "what is in force is not known"},
		{"one-list", "sb-1", `{"outbound_domain_allowlist": []}`, nil, [2]string{}, "are both needed"},
		{"null", "sb-1", `{"outbound_domain_allowlist": null, "outbound_cidr_allowlist": []}`, nil, [2]string{}, "are both needed"},
		{"field", "sb-1", `{"block_network": true}`, nil, [2]string{}, `unknown field "block_network"`},
		{"id", "x/../y", lists, nil, [2]string{}, "is no id of a sandbox"},
		{"no-token", "sb-1", lists, nil, [2]string{"MODAL_TOKEN_SECRET", ""}, "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET are not set"},
		{"plain-http", "sb-1", lists, nil, [2]string{"MODAL_SERVER_URL", "http://modal.test"}, "MODAL_SERVER_URL is not https"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := &fakeModal{shared: shared{deny: row.deny}}
			start(t, f)
			if row.env[0] != "" {
				t.Setenv(row.env[0], row.env[1])
			}
			var complaints bytes.Buffer
			code := run(t.Context(), []string{row.sandbox}, strings.NewReader(row.in), &complaints)
			if code != 1 || !strings.Contains(complaints.String(), row.want) || strings.Contains(complaints.String(), "as-secret") {
				t.Errorf("code %d: %s", code, &complaints)
			}
		})
	}
	var complaints bytes.Buffer
	if code := run(t.Context(), nil, strings.NewReader(""), &complaints); code != 2 {
		t.Errorf("no sandbox: code %d", code)
	}
}
