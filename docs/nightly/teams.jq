# For a workflow of Microsoft Teams that starts when a webhook request is received; it takes Adaptive Cards:
#   nightly gate --format webhook | jq -f teams.jq | curl -sSf --json @- -K teams.curl
def line($text; $weight): {type: "RichTextBlock", inlines: [{type: "TextRun", text: $text, weight: $weight}]};
{
  type: "message",
  attachments: [{
    contentType: "application/vnd.microsoft.card.adaptive",
    content: {
      "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
      type: "AdaptiveCard",
      version: "1.4",
      body: (.text | split("\n") | [line(.[0]; "Bolder")] + [.[1:][] | line(.; "Default")]),
      actions: [.link | strings | {type: "Action.OpenUrl", title: "Pages", url: .}]
    }
  }]
}
