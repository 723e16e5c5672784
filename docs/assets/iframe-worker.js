/* Browsers start no web workers for pages opened from disk, and the theme's search runs in one. For such pages a hidden
   frame takes the worker's place: its script runs there, and messages go to and fro as events. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      this.ready = new Promise((done, failed) => {
        script.onload = done
        script.onerror = () => failed(new Error(`cannot load ${address}`))
      })
      script.src = address
      inside.document.body.appendChild(script)
    }

    async postMessage(data) {
      await this.ready
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
