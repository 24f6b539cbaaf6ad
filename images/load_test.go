package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"go.uber.org/goleak"
)

// fakeEngine reads the archive as far as it likes and gives a fixed answer.
type fakeEngine struct {
	reads  int64 // bytes; -1 for all
	answer string
	err    error
	got    bytes.Buffer
	others int // so often another one is faster
}

func (e *fakeEngine) ImageLoad(_ context.Context, archive io.Reader, _ ...client.ImageLoadOption) (image.LoadResponse, error) {
	if e.reads < 0 {
		if _, err := io.Copy(&e.got, archive); err != nil {
			return image.LoadResponse{}, err
		}
	} else if _, err := io.CopyN(&e.got, archive, e.reads); err != nil {
		return image.LoadResponse{}, err
	}
	answer := e.answer
	if e.others > 0 {
		e.others--
		e.got.Reset()
		answer = `{"error":"AlreadyExists: image \"docker.io/library/sluice-proxy:dev\": already exists"}`
	}
	return image.LoadResponse{Body: io.NopCloser(strings.NewReader(answer))}, e.err
}

func TestLoad(t *testing.T) {
	defer goleak.VerifyNone(t)
	img, err := SluiceProxy(bytes.Repeat([]byte("x"), 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if err := WriteArchive(&whole, img); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		engine fakeEngine
		want   string // "" for success
	}{
		{"loaded", fakeEngine{reads: -1, answer: `{"stream":"Loaded image: sluice-proxy:dev\n"}`}, ""},
		{"refused_in_the_body", fakeEngine{reads: -1, answer: "{\"stream\":\"x\"}\n{\"error\":\"no space left\"}"}, "no space left"},
		{"others_load_it_too", fakeEngine{reads: -1, answer: `{"stream":"Loaded image: sluice-proxy:dev\n"}`, others: loadTries - 1}, ""},
		{"always_there", fakeEngine{reads: -1, others: loadTries}, "already exists"},
		{"answer_cut_off", fakeEngine{reads: -1, answer: `{"stream":`}, "read its answer"},
		{"gave_up_early", fakeEngine{reads: 512, err: errors.New("connection reset")}, "connection reset"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Load(t.Context(), &test.engine, img)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(test.engine.got.Bytes(), whole.Bytes()) {
					t.Error("the engine got other bytes than the archive")
				}
			} else if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestLoadReportsAnImageThatCannotBeWritten(t *testing.T) {
	err := Load(t.Context(), &fakeEngine{reads: -1}, Image{Tag: "no-tag"})
	if err == nil || !strings.Contains(err.Error(), "NAME:TAG") {
		t.Errorf("error %v, want the one of the archive", err)
	}
}
